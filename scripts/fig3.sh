#!/usr/bin/env bash
# Figure 3: continual pre-training from checkpoints of an overfitted first phase; then the figure.
#
#   scripts/fig3.sh                 the offline pair of corpora with gpt_tiny, on a CPU (docs/studies/language/index.md)
#   scripts/fig3.sh paper [GPUS]    GPT-0.1B on WikiText-103, then OpenWebText, with torchrun: base, full reset, S&P, FIRE
#   scripts/fig3.sh mixture [GPUS]  the same with one pass over both corpora mixed, as the paper's words have it
#   scripts/fig3.sh exact [GPUS]    as `paper`, and FIRE exact, which the paper has not
#   scripts/fig3.sh paper 1 batch_size=20 accumulation=24     options for every run
#   scripts/fig3.sh smoke           runs every part once on a CPU, learns little
#   scripts/fig3.sh --dry-run ...   prints every command
#
# The full reset does not depend on the checkpoint, so it is trained from `best` alone; the figure shows it in all panels.
# Started again, it skips finished runs and resumes unfinished ones. SEEDS="1 2 3" and RUNS=runs/fig3 can be set.
set -euo pipefail
source "$(dirname "$0")/panels.sh"
cd "$(dirname "$0")/.."
told "$@"
size=offline gpus=8
if [[ ${words[0]:-} && ${words[0]} != *=* ]]; then size=${words[0]} words=("${words[@]:1}"); fi
if [[ ${words[0]:-} && ${words[0]} != *=* ]]; then gpus=${words[0]} words=("${words[@]:1}"); fi
methods="base snp fire" runs=${RUNS:-runs/fig3} data=()
[[ " offline paper mixture exact smoke " == *" $size "* ]] || refuse "$size" offline paper mixture exact smoke
[[ $gpus =~ ^[0-9]+$ ]] || refuse "$gpus" "a number of GPUs"
for option in ${words[@]+"${words[@]}"}; do
    [[ $option == *=* ]] || refuse "$option" "option=value after the size and the number of GPUs"
    [[ $option != paths.runs=* ]] || runs=${option#paths.runs=}
    [[ $option != paths.data=* ]] || data=("$option")
done
[[ $size == paper || $size == mixture ]] || methods+=" fire_exact"

if [[ $size == paper || $size == mixture || $size == exact ]]; then
    echo "this takes about 130 GB of disk (OpenWebText 64, its tokens 18, one checkpoint of 1.5 a run) and can be stopped at any time"
    for corpus in wikitext103_tokenised openwebtext; do
        run python -m language.prepare dataset=$corpus tokenizer=gpt2 ${data[@]+"${data[@]}"}
    done
    [[ $size != mixture ]] || words=(dataset=wiki_owt 'benchmark.passes=[400,1]' ${words[@]+"${words[@]}"})
    for seed in ${SEEDS:-1 2 3}; do
        for start in best 30k 60k; do
            for method in $methods $([[ $start != best ]] || echo full_reset); do
                train torchrun --nproc_per_node="$gpus" -m language.train experiment=fig3 \
                    method="$method" benchmark.start="$start" seed="$seed" paths.runs="$runs" ${words[@]+"${words[@]}"}
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
        options=(benchmark=continual_pretraining seed="$seed" paths.runs="$runs" tracker=none progress=false ${small[@]+"${small[@]}"} ${words[@]+"${words[@]}"})
        train python -m language.train -m method="${methods// /,}" benchmark.start=best,end "${options[@]}"
        train python -m language.train method=full_reset benchmark.start=best "${options[@]}"
    done
fi
run python analysis/make_figures.py --runs "$runs" --out "$runs/figures" --export "$runs/language.csv"
exit $not_trained
