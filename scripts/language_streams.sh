#!/usr/bin/env bash
# docs/results/language_streams.*: methods on streams of texts with a small GPT. Hours on one core. Started again, it goes on
# where it was: finished runs are skipped.
#
#   scripts/language_streams.sh                 one, two, three ... seeds of both streams, then the page
#   scripts/language_streams.sh permuted_text   one stream; also: domains
#   scripts/language_streams.sh page            only csv, tables, figures and the page, from the runs
#   scripts/language_streams.sh smoke           runs every part once, into runs/smoke
#   SEEDS="1 2 3" scripts/language_streams.sh domains
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${RUNS:-runs/language_streams} seeds=${SEEDS:-1 2 3 4 5 6 7 8 9 10}
small=(tracker=none progress=false checkpoint.keep=1) parallel=(hydra/launcher=cores -m)

stream() { # name, seed; as many runs at once as cores, one thread each
    local options=("experiment=$1" "seed=$2" "paths.runs=$runs/$1" "paths.cache=$runs/.cache" "${small[@]}")
    python -m language.train "${options[@]}" method=base,full_reset,snp,fire_exact "${parallel[@]}"
    python -m language.train "${options[@]}" method=fire method.iterations=5,10 'method.name=fire_${method.iterations}' \
        "${parallel[@]}"
}

page=()
case ${1:-all} in
    all) for seed in $seeds; do for name in permuted_text domains; do stream "$name" "$seed"; done; done ;;
    permuted_text | domains) for seed in $seeds; do stream "$1" "$seed"; done && exit ;;
    page) ;;
    smoke)
        runs=${RUNS:-runs/smoke} parallel=(-m) page=(--results "$runs/results" --page "$runs/page.md")
        small+=(scale=smoke batch_size=2 model.n_layer=1 model.n_embd=16 model.block_size=16 benchmark.iterations=4)
        stream domains 1
        ;;
    *) sed -n '2,/^set/p' "$0" | grep '^#' >&2 && exit 2 ;;
esac
python analysis/make_tables.py language_streams --runs "$runs" ${page[@]+"${page[@]}"}
