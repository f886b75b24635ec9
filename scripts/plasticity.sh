#!/usr/bin/env bash
# docs/results/plasticity.*: every method on streams of tasks, tuned alike, twenty seeds (a hundred of the regression, whose
# tasks are a hundred too: within twenty little is lost). Hours on one core. Started again, it
# goes on where it was: finished trials and runs are skipped.
#
#   scripts/plasticity.sh                          all streams and methods, FIRE's variants, tables, figures and the page
#   scripts/plasticity.sh random_labels            one stream
#   scripts/plasticity.sh random_labels base,fire  some methods of it
#   scripts/plasticity.sh variants                 FIRE's ingredients on random labels
#   scripts/plasticity.sh page                     only tables, figures and the page, from the runs
#   SEEDS=10 scripts/plasticity.sh variants        fewer seeds; the same command without it adds the others
#   scripts/plasticity.sh smoke                    runs every part once, into runs/smoke
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${RUNS:-runs/plasticity}
# Slow ones last, so that what is there is worth reading as early as it can be. Not there: nap (this network has no norms)
# and pi (it has no declared head).
methods=base,optimizer_reset,full_reset,random_isometry,fire,snp,fire_exact,dash,redo,l2init,weight_decay,weight_clipping,regrama,cpr,upgd,hare_tortoise
methods+=,fuse,swr,adamo,parseval,muon,cbp,snr,spectral,fire+weight_decay,fire+muon,l2_er,c_chain,trac
small=(tracker=none cache=off progress=false) table=() page=()
parallel=(hydra/launcher=cores -m) # as many runs at once as cores, one thread each

# Tasks of a trial of the search: fewer than the twenty (a hundred, permuted_online) that are reported, but not so few that
# what declines later looks good: with six, the search chose a FIRE that fell behind a full reset after ten.
search_of() {
    case $1 in
        warm_start) echo trials=17 ;;
        permuted_online) echo trials=17 benchmark.tasks=30 ;;
        slowly_changing_regression) echo trials=9 benchmark.tasks=30 ;;
        *) echo trials=17 benchmark.tasks=10 ;;
    esac
}
seeds() { echo "seed=range(1,$((${SEEDS:-$1} + 1)))"; }

tune() { # stream, methods
    # shellcheck disable=SC2046  # several options
    python -m vision.tune "experiment=plasticity_$1" $(search_of "$1") "method=$2" "paths.runs=$runs/search" \
        ${table[@]+"${table[@]}"}
}

train() { # stream, methods: those that are no chains in one sweep
    local stream=$1 plain chain where=()
    where=(tuned=searched "experiment=plasticity_$stream" "${small[@]}" "paths.runs=$runs/runs")
    if [ "$stream" = slowly_changing_regression ]; then
        where+=("$(seeds 100)" benchmark.tasks=100)
    else
        where+=("$(seeds 20)")
    fi
    plain=$(tr , '\n' <<< "$2" | grep -v + | paste -sd, -)
    if [ -n "$plain" ]; then python -m vision.train "${where[@]}" "method=$plain" "${parallel[@]}"; fi
    for chain in $(tr , '\n' <<< "$2" | grep + || true); do
        python -m vision.train "${where[@]}" method=chain "method.of=$chain" "${parallel[@]}"
    done
}

variants() { # each changes one thing in FIRE as it is by default; all at the stream's default rate, nothing tuned
    local where=(experiment=plasticity_random_labels "$(seeds 20)" "${small[@]}" "paths.runs=$runs/variants") name options
    python -m vision.train "${where[@]}" method=base,full_reset,fire,fire_exact,random_isometry "${parallel[@]}"
    python -m vision.train "${where[@]}" method=optimizer_reset method.name=only_optimizer_reset "${parallel[@]}"
    # Networks in the place of methods: what the field calls the strongest simple baselines.
    python -m vision.train "${where[@]}" method=base method.name=layer_norm model.norm=layer "${parallel[@]}"
    python -m vision.train "${where[@]}" method=weight_decay method.name=layer_norm+weight_decay model.norm=layer "${parallel[@]}"
    python -m vision.train "${where[@]}" method=base 'method.name=${model.activation}' model.activation=crelu,fourier "${parallel[@]}"
    while read -r name options; do
        # shellcheck disable=SC2086  # several options
        python -m vision.train "${where[@]}" method=fire "method.name=$name" $options "${parallel[@]}" < /dev/null
    done << 'END'
blend_${method.blend} method.blend=0.0,0.25,0.5,0.75
steps_${method.iterations} method.iterations=1,2,5,20
norm_init_spectral method.norm_init=spectral
scale_${method.scale} method.scale=orthogonal,match_init,keep_norm
first_layer method.layout={backbone.fc0:project}
second_layer method.layout={backbone.fc1:project}
head method.layout={head:project}
all_but_head method.layout={backbone:project}
END
}

draw() { python analysis/make_tables.py plasticity "$@" ${page[@]+"${page[@]}"}; }

what=${1:-all}
case $what in
    all) for stream in random_labels permuted permuted_online warm_start slowly_changing_regression; do "$0" "$stream"; done && "$0" variants ;;
    smoke)
        runs=${RUNS:-runs/smoke} small+=(scale=smoke benchmark.tasks=3) parallel=(-m) SEEDS=1
        table=(scale=smoke benchmark.tasks=2 trials=2 seeds=1 workers=1 "table=$runs/results/search_random_labels_digits.csv" "winners=$runs/winners.yaml")
        page=(--results "$runs/results" --page "$runs/page.md")
        tune random_labels base,fire
        train random_labels base,fire
        draw --runs "$runs/runs"
        ;;
    variants) variants && draw --runs "$runs/variants" --variants ;;
    page) draw --runs "$runs/runs" ;;
    *) tune "$what" "${2:-$methods}" && train "$what" "${2:-$methods}" && draw --runs "$runs/runs" ;;
esac
