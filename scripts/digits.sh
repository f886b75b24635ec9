#!/usr/bin/env bash
# docs/results/digits.*: thirteen methods on a perceptron, twenty seeds; about five minutes on one core. Started again, it
# skips finished runs and resumes others.
#
#   scripts/digits.sh           all
#   scripts/digits.sh smoke     runs every part once, into runs/smoke; learns little
set -euo pipefail
cd "$(dirname "$0")/.."
methods=base,full_reset,snp,fire,fire_exact,random_isometry,dash,parseval,l2init,cbp,redo,snr,muon
runs=runs figures=figures results=docs/results seeds="range(201,221)" more=(hydra/launcher=cores)
if [ "${1:-}" = smoke ]; then
    runs=${RUNS:-runs/smoke} seeds=1 methods=base,fire more=(scale=smoke progress=false)
    figures=$runs/figures results=$runs/results
fi
python -m vision.train benchmark=warm_start dataset.pixel_noise=0.4 model=mlp model.hidden=64 model.depth=5 \
    model.norm=true method=$methods "seed=$seeds" tracker=none paths.runs="$runs/digits" "${more[@]}" -m
python analysis/make_figures.py --runs "$runs/digits" --out "$figures/digits" --export "$results/digits.csv"
cp "$figures/digits/warm_start-digits-mlp.png" "$results/digits.png"
