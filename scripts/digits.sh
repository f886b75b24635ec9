#!/usr/bin/env bash
# docs/results/digits.* (a perceptron, the default; about five minutes on one core) and digits_resnet.* (a residual
# network; half an hour more): twelve methods, twenty seeds. Started again, it skips finished runs and resumes others.
set -euo pipefail
cd "$(dirname "$0")/.."
methods=base,full_reset,snp,fire,fire_exact,dash,parseval,l2init,cbp,redo,snr,muon
for made in digits:mlp digits_resnet:small_resnet; do
    name=${made%:*} model=${made#*:}
    python -m vision.train model="$model" method=$methods "seed=range(0,20)" tracker=none paths.runs="runs/$name" -m
    python analysis/make_figures.py --runs "runs/$name" --out "figures/$name" --export "docs/results/$name.csv"
    cp "figures/$name/warm_start-digits-$model.png" "docs/results/$name.png"
done
