#!/usr/bin/env bash
# docs/results/digits.* (a perceptron; about five minutes on one core) and digits_resnet.* (a residual network; half an hour
# more): thirteen methods, twenty seeds. Started again, it skips finished runs and resumes others.
#
#   scripts/digits.sh           both
#   scripts/digits.sh smoke     runs every part once, into runs/smoke; learns little
set -euo pipefail
cd "$(dirname "$0")/.."
methods=base,full_reset,snp,fire,fire_exact,random_isometry,dash,parseval,l2init,cbp,redo,snr,muon
runs=runs figures=figures results=docs/results seeds="range(201,221)" more=(hydra/launcher=cores)
if [ "${1:-}" = smoke ]; then
    runs=${RUNS:-runs/smoke} seeds=1 methods=base,fire more=(scale=smoke progress=false)
    figures=$runs/figures results=$runs/results
fi
for made in digits:mlp digits_resnet:small_resnet; do
    name=${made%:*} model=${made#*:}
    setting=(benchmark=warm_start dataset.pixel_noise=0.4 model="$model")
    if [ "$model" = mlp ]; then setting+=(model.hidden=64 model.depth=5 model.norm=true); fi
    python -m vision.train "${setting[@]}" method=$methods "seed=$seeds" tracker=none paths.runs="$runs/$name" \
        "${more[@]}" -m
    python analysis/make_figures.py --runs "$runs/$name" --out "$figures/$name" --export "$results/$name.csv"
    cp "$figures/$name/warm_start-digits-$model.png" "$results/$name.png"
done
