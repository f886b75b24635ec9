#!/usr/bin/env bash
# Figure 3: continual pre-training from checkpoints of an overfitted first phase; then the figure.
#
#   scripts/fig3.sh                 the offline pair of corpora with gpt_tiny, on a CPU (docs/results/language.md)
#   scripts/fig3.sh paper [GPUS]    GPT-0.1B on WikiText-103 and OpenWebText with torchrun, as in the paper
#   scripts/fig3.sh smoke           runs every part once on a CPU, learns little
#
# The full reset does not depend on the checkpoint, so it is trained from `best` alone; the figure shows it in all panels.
# Started again, it skips finished runs and resumes unfinished ones. SEEDS="1 2 3" and RUNS=runs/fig3 can be set.
set -euo pipefail
cd "$(dirname "$0")/.."
methods="base snp fire fire_exact"

if [ "${1:-offline}" = paper ]; then
    runs=${RUNS:-runs/fig3}
    python -m language.prepare dataset=wikitext103 tokenizer=gpt2
    python -m language.prepare dataset=openwebtext tokenizer=gpt2
    for seed in ${SEEDS:-1 2 3}; do
        for start in best 30k 60k; do
            for method in $methods $([ $start = best ] && echo full_reset); do
                torchrun --nproc_per_node="${2:-8}" -m language.train experiment=fig3 \
                    method="$method" benchmark.start="$start" seed="$seed" paths.runs="$runs"
            done
        done
    done
else
    runs=${RUNS:-runs/fig3} seeds=${SEEDS:-0 1 2} small=()
    if [ "${1:-offline}" = smoke ]; then
        runs=${RUNS:-runs/smoke} seeds=${SEEDS:-1}
        small=(scale=smoke model.n_layer=1 model.n_head=2 model.n_embd=32 model.block_size=32 batch_size=2
            'benchmark.iterations=[40,40]' 'benchmark.checkpoints=[20]' threads=1)
    fi
    # Seed by seed, so that a sweep that is stopped has whole seeds.
    for seed in $seeds; do
        options=(seed="$seed" paths.runs="$runs" tracker=none progress=false ${small[@]+"${small[@]}"})
        python -m language.train -m method="${methods// /,}" benchmark.start=best,end "${options[@]}"
        python -m language.train method=full_reset benchmark.start=best "${options[@]}"
    done
fi
python analysis/make_figures.py --runs "$runs" --out "$runs/figures" --export "$runs/language.csv"
