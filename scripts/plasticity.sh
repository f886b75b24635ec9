#!/usr/bin/env bash
# docs/results/plasticity.*: every method on streams of tasks, tuned alike, twenty seeds. Hours on one core. Started again, it
# goes on where it was: finished trials and runs are skipped.
#
#   scripts/plasticity.sh                              all streams, all methods, the page
#   scripts/plasticity.sh random_labels                one stream
#   scripts/plasticity.sh random_labels base,fire      two methods of it
#   scripts/plasticity.sh page                         only the tables, figures and page, from runs/plasticity
#   scripts/plasticity.sh smoke                        runs every part once, into runs/smoke
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${RUNS:-runs/plasticity}
# The dear ones last: each table is complete as early as it can be.
all=base,full_reset,fire,snp,fire_exact,l2init,weight_decay,dash,redo,weight_clipping,regrama,cpr,upgd,hare_tortoise
all+=,parseval,muon,cbp,snr,spectral,fire+muon,fire+weight_decay,l2_er,c_chain,trac
smoke=()

train() { # stream, method, options...
    local stream=$1 method=$2 chosen=(method="$2")
    shift 2
    case $method in *+*) chosen=(method=chain "method.of=[${method//+/,}]") ;; esac
    python -m vision.train "experiment=plasticity_$stream" "${chosen[@]}" "tuned/searched='${stream}_${data[$stream]}_$method'" \
        seed=1 stack=20 tracker=none cache=off "paths.runs=$runs" "$@"
}
