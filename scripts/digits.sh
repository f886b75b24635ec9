#!/usr/bin/env bash
# docs/results/digits.*: five methods, twenty seeds. About 20 minutes on one core; started again, it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
python -m vision.train method=base,full_reset,snp,fire,fire_exact "seed=range(0,20)" tracker=none -m
python analysis/make_figures.py --runs runs --out figures --export docs/results/digits.csv
cp figures/warm_start-digits-small_resnet.png docs/results/digits.png
