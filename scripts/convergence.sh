#!/usr/bin/env bash
# docs/studies/convergence/index.md: DfI, SFE and singular values by solver, start and number of steps.
#
#   scripts/convergence.sh              both: families, trained
#   scripts/convergence.sh families     random matrices
#   scripts/convergence.sh trained      the paper's vision networks after a short training on the digits
#   scripts/convergence.sh smoke        every part once, small
#
# A table that is there (RUNS=runs/convergence) is not made again.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${RUNS:-runs/convergence}
weights=$runs/weights

table() { # table <name> [argument ...]
    local name=$1
    shift
    if [[ -f $runs/$name/convergence.csv ]]; then
        echo "$runs/$name is done"
    else
        fire convergence "$@" --out "$runs/$name"
        python -m harness.run.provenance "$runs/$name/convergence.csv" fire convergence "$@"
    fi
}
trained() { # trained <model> <steps>: its weights, once
    [[ -f $weights/$1-trained.pt ]] || python scripts/bench_projection.py --weights trained --models "$1" \
        --train-steps "$2" --threads 1 --save "$weights" --rounds 1
}

case ${1:-all} in
    all | families) table families --size 64 256 --draws 20 ;;&
    all | trained)
        trained vit 300
        trained resnet18 150
        trained vgg16 80
        table trained "$weights"/{resnet18,vgg16,vit}-trained.pt --families --limit 4
        ;;&
    smoke) table smoke --families square --size 8 --draws 2 --iterations 1 5 ;;
    all | families | trained) ;;
    *) echo "error: $1 is unknown; accepted: families, trained, smoke" >&2 && exit 2 ;;
esac
