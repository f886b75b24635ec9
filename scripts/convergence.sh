#!/usr/bin/env bash
# docs/results/convergence.md: DfI, SFE and singular values by solver, start and number of steps.
#
#   scripts/convergence.sh              all of: families, trained, gpt
#   scripts/convergence.sh families     random matrices
#   scripts/convergence.sh trained      the paper's vision networks after a short training on the digits
#   scripts/convergence.sh gpt          GPT-0.1B's blocks at initialisation, and hardened (ill-conditioned)
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
        python -m fire_core.convergence "$@" --out "$runs/$name"
        python -m harness.run.provenance "$runs/$name/convergence.csv" python -m fire_core.convergence "$@"
    fi
}
trained() { # trained <model> <steps>: its weights, once
    [[ -f $weights/$1-trained.pt ]] || python scripts/bench_projection.py --weights trained --models "$1" \
        --train-steps "$2" --threads 1 --save "$weights" --repeats 1 --no-memory
}
gpt() { # gpt [argument ...]: its weights, once
    [[ -f $weights/gpt-hardened.pt ]] || python scripts/gpt_weights.py "$weights" "$@"
}

case ${1:-all} in
    all | families) table families --size 64 256 --draws 20 ;;&
    all | trained)
        trained vit 300
        trained resnet18 150
        trained vgg16 80
        table trained "$weights"/{resnet18,vgg16,vit}-trained.pt --families --limit 4
        ;;&
    all | gpt)
        gpt
        table gpt "$weights"/gpt-{init,hardened}.pt --families --limit 2 --only 'transformer.h.*' \
            --iterations 5 10 15 20 30
        ;;&
    smoke)
        gpt --layers 1 --width 32 --vocabulary 64
        table smoke "$weights"/gpt-{init,hardened}.pt --families square --size 8 --draws 2 --limit 1 \
            --only 'transformer.h.*' --iterations 1 5
        ;;&
    all | families | trained | gpt | smoke) ;;
    *) echo "error: $1 is unknown; accepted: families, trained, gpt, smoke" >&2 && exit 2 ;;
esac
