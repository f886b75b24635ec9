#!/usr/bin/env bash
# docs/results/language_streams.*: what FIRE and its parts do to a small GPT. Hours on one core. Started again, it goes on where
# it was: finished runs are skipped.
#
#   scripts/language_grid.sh                 one, two, three seeds of all but the grid, then all, then the page
#   scripts/language_grid.sh permuted_text   the main rows of a stream; also: domains
#   scripts/language_grid.sh grid            isometry, scale, weights, optimizer, dial, architecture
#   scripts/language_grid.sh mechanism       what projected q and k do to a chain of small tasks
#   scripts/language_grid.sh unclipped       the grid's first rows without clipping of gradients
#   scripts/language_grid.sh page            only csv, tables, figures and the page, from the runs
#   scripts/language_grid.sh smoke           runs every part once, into runs/smoke
#   SEEDS="1 2 3" scripts/language_grid.sh domains
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${RUNS:-runs/language_streams}
main=${SEEDS:-1 2 3 4 5 6 7 8 9 10} few=${SEEDS:-1 2 3 4 5}
small=(tracker=none progress=false checkpoint.keep=1)
parallel=(hydra/launcher=cores -m) # as many runs at once as cores, one thread each
parts="method=fire method._target_=scripts.language_ingredients.Parts"

train() { # folder, seeds, options of a sweep
    local folder=$1 seed=$2
    shift 2
    python -m language.train "$@" "seed=$seed" "paths.runs=$runs/$folder" "cache.dir=$runs/.cache" \
        "${small[@]}" "${parallel[@]}" < /dev/null
}

stream() { # name: seed by seed, so that a sweep that is stopped has whole seeds
    local seed
    for seed in $main; do
        train "$1" "$seed" "experiment=$1" method=base,full_reset,snp,fire_exact
        train "$1" "$seed" "experiment=$1" method=fire method.iterations=5,10 'method.name=fire_${method.iterations}'
    done
}

variants() { # folder, seeds, experiment and its options: reads variants, a line each
    local folder=$1 seeds=$2 line
    shift 2
    while read -r line; do
        [[ -z $line || $line == \#* ]] && continue
        # shellcheck disable=SC2086  # several options
        train "$folder" "${seeds// /,}" "$@" $line
    done
}

grid() { # each variant differs from fire_10 in what its name says
    variants grid "$few" experiment=permuted_text benchmark.tasks=8 benchmark.iterations=150 << END
method=base
method=full_reset
method=fire method.iterations=5,10,15 method.name=fire_\${method.iterations}
method=fire_exact
$parts method.iterations=10 method.name=reset_\${method.reset} +method.change=nothing +method.reset=changed,all
$parts method.iterations=10 method.name=fire_10-reset_\${method.reset} +method.reset=none,all
$parts method.solver=exact method.name=exact-reset_\${method.reset} +method.reset=none,all
$parts method.iterations=10 method.name=part_\${method.change} +method.change=norm,shape,small,large
method=fire method.iterations=10 method.name=fire_10-\${method.layout} method.layout=qk,attention,mlp
method=fire method.iterations=10 method.name=fire_10-no_head method.layout={linear:project,head:keep}
method=fire method.iterations=10 method.name=fire_10-head method.layout={head:project}
method=fire_exact method.name=exact-\${method.layout} method.layout=qk,attention,mlp
method=fire_exact method.name=exact-no_head method.layout={linear:project,head:keep}
method=fire method.iterations=10 method.name=fire_10-\${method.scale} method.scale=keep_norm,init_norm,orthogonal
method=fire_exact method.name=exact-\${method.scale} method.scale=keep_norm,init_norm,orthogonal
method=fire_exact method.name=exact-\${method.scale}-no_head method.scale=keep_norm,init_norm,orthogonal method.layout={linear:project,head:keep}
method=fire method.iterations=10 method.name=fire_10-\${method.scale}-no_head method.scale=keep_norm,init_norm,orthogonal method.layout={linear:project,head:keep}
method=fire method.iterations=10 method.name=fire_10-dial_\${method.blend} method.blend=0.25,0.5,0.75
method=fire method.iterations=10 method.name=fire_10-keep_norm-dial_\${method.blend} method.scale=keep_norm method.blend=0.25,0.5,0.75
method=fire method.iterations=5 method.name=fire_5-\${method.norm_init} method.norm_init=spectral
method=fire method.iterations=10 method.name=fire_10-\${method.scale}-\${method.layout} method.scale=keep_norm,init_norm,orthogonal method.layout=qk,attention,mlp
method=fire method.iterations=5,15 method.name=fire_\${method.iterations}-\${method.scale} method.scale=keep_norm,init_norm,orthogonal
method=muon
method=chain method.of=[fire,muon] method.parts.fire.iterations=10 method.name=fire_10+muon
method=base method.name=swiglu-base model.activation=swiglu
method=full_reset method.name=swiglu-full_reset model.activation=swiglu
method=fire method.name=swiglu-fire_\${method.iterations} method.iterations=5,10,15 model.activation=swiglu
END
}

mechanism() { # of FIRE with five steps on q and k, which resets the optimizer's state of their weights
    local qk="$parts method.iterations=5 method.layout=qk"
    variants mechanism "$few" experiment=finetune_chain << END
method=base
method=full_reset
method=fire method.iterations=5 method.layout=qk method.name=qk_5
$qk method.name=qk_5-reset_\${method.reset} +method.reset=none,all
$qk method.name=reset_\${method.reset} +method.change=nothing +method.reset=changed,all
$qk method.name=part_\${method.change} +method.change=norm,shape,small,large +method.reset=none
$qk method.name=part_\${method.change}-reset_all +method.change=norm,shape +method.reset=all
method=fire method.iterations=5 method.layout=qk method.scale=keep_norm method.name=qk_5-keep_norm
method=fire_exact method.layout=qk method.name=qk_exact
method=fire_exact method.layout=qk method.scale=keep_norm method.name=qk_exact-keep_norm
method=fire method.iterations=5 method.layout=qk method.scale=keep_norm method.blend=0.25,0.5 method.name=qk_5-keep_norm-dial_\${method.blend}
method=fire method.iterations=5 method.name=all_5
method=fire method.iterations=10 method.name=all_10-no_head method.layout={linear:project,head:keep}
method=fire method.iterations=10 method.name=mlp_10 method.layout=mlp
method=fire method.iterations=5 method.scale=keep_norm method.name=all_5-keep_norm
method=snp
END
}

unclipped() { # the grid's first rows without clipping of gradients
    variants unclipped "$few" experiment=permuted_text benchmark.tasks=8 benchmark.iterations=150 grad_clip=null << END
method=base,full_reset
method=fire method.iterations=10 method.name=fire_10
END
}

page() { python analysis/make_language_streams.py --runs "$runs" "$@"; }

case ${1:-all} in
    all)
        for seed in 1 2 3; do
            for part in permuted_text mechanism domains; do SEEDS=$seed "$0" "$part"; done
        done
        for part in permuted_text domains grid mechanism unclipped; do "$0" "$part"; done
        page
        ;;
    permuted_text | domains) stream "$1" ;;
    grid | mechanism | unclipped) "$1" ;;
    page) page ;;
    smoke)
        runs=${RUNS:-runs/smoke} main=1 few=1
        small+=(scale=smoke batch_size=2 model.n_layer=1 model.n_embd=16 model.block_size=16 benchmark.iterations=4)
        stream domains
        variants mechanism 1 experiment=finetune_chain <<< "$parts method.layout=qk +method.change=norm,small method.name=part_\${method.change}"
        page --results "$runs/results" --page "$runs/page.md"
        ;;
    *) sed -n '2,/^set/p' "$0" | grep '^#' >&2 && exit 2 ;;
esac
