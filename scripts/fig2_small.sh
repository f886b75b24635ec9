#!/usr/bin/env bash
# Figure 2 in small, on JPEG copies of CIFAR-10 (docs/protocol.md): a ResNet-18 of width 16, few epochs, many cores or one.
#
#   scripts/fig2_small.sh                  panels a, c and b, one after the other
#   scripts/fig2_small.sh a                one panel
#   scripts/fig2_small.sh a fire,snp       some of its rows
#   scripts/fig2_small.sh smoke            every row of every panel once; learns nothing
#
# On a GPU several runs share it: python -m scripts.studies figure2_small_a workers=9.
# The images: train/<class>/*.jpg and test/<class>/*.jpg below data/cifar10_jpeg. Started again, it skips finished runs and
# resumes unfinished ones. The tables: docs/results/studies/figure2_small_<panel>.csv and .curves.csv.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-all} in
    a | b | c) python -m scripts.studies "figure2_small_$1" ${2:+"rows=$2"} ;;
    all) for panel in a c b; do python -m scripts.studies figure2_small_$panel; done ;;
    smoke) for panel in a c b; do python -m scripts.studies figure2_small_$panel smoke workers=1; done ;;
    *) echo "$1 is unknown: a, b, c, smoke, or nothing for all panels" >&2; exit 2 ;;
esac
