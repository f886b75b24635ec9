#!/usr/bin/env bash
# Figure 3: continual pre-training from checkpoints of an overfitted first phase; then the figure.
#
#   scripts/fig3.sh                 the offline pair of corpora with gpt_tiny, on a CPU (docs/studies/language/index.md)
#   scripts/fig3.sh paper [GPUS]    GPT-0.1B on WikiText-103 and OpenWebText with torchrun, as in the paper: base, full reset, S&P, FIRE
#   scripts/fig3.sh exact [GPUS]    the same and FIRE exact, which the paper has not
#   scripts/fig3.sh smoke           runs every part once on a CPU, learns little
#   scripts/fig3.sh --dry-run ...   prints every command
#
# The full reset does not depend on the checkpoint, so it is trained from `best` alone; the figure shows it in all panels.
# Started again, it skips finished runs and resumes unfinished ones. SEEDS="1 2 3" and RUNS=runs/fig3 can be set.
set -euo pipefail
source "$(dirname "$0")/panels.sh"
cd "$(dirname "$0")/.."
told "$@"
size=${words[0]:-offline} gpus=${words[1]:-8}
methods="base snp fire" runs=${RUNS:-runs/fig3}
[[ " offline paper exact smoke " == *" $size "* ]] || refuse "$size" paper exact smoke
[[ $gpus =~ ^[0-9]+$ ]] || refuse "$gpus" "a number of GPUs"
[[ $size == paper ]] || methods+=" fire_exact"

if [[ $size == paper || $size == exact ]]; then
    echo "this takes about 130 GB of disk (OpenWebText 64, its tokens 18, one checkpoint of 1.5 a run) and can be stopped at any time"
    run python -m language.prepare dataset=wikitext103_tokenised tokenizer=gpt2
    run python -m language.prepare dataset=openwebtext tokenizer=gpt2
    for seed in ${SEEDS:-1 2 3}; do
        for start in best 30k 60k; do
            for method in $methods $([[ $start != best ]] || echo full_reset); do
                run torchrun --nproc_per_node="$gpus" -m language.train experiment=fig3 \
                    method="$method" benchmark.start="$start" seed="$seed" paths.runs="$runs"
            done
        done
    done
else
    seeds=${SEEDS:-0 1 2} small=()
    if [[ $size == smoke ]]; then
        runs=${RUNS:-runs/smoke} seeds=${SEEDS:-1} methods="base fire"
        small=(scale=smoke model.n_layer=1 model.n_head=2 model.n_embd=32 model.block_size=32 batch_size=2
            'benchmark.iterations=[40,40]' 'benchmark.checkpoints=[20]' threads=1)
    fi
    # Seed by seed, so that a sweep that is stopped has whole seeds.
    for seed in $seeds; do
        options=(benchmark=continual_pretraining seed="$seed" paths.runs="$runs" tracker=none progress=false ${small[@]+"${small[@]}"})
        run python -m language.train -m method="${methods// /,}" benchmark.start=best,end "${options[@]}"
        run python -m language.train method=full_reset benchmark.start=best "${options[@]}"
    done
fi
run python analysis/make_figures.py --runs "$runs" --out "$runs/figures" --export "$runs/language.csv"
