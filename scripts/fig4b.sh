#!/usr/bin/env bash
# Figure 4b of the paper: SAC on three humanoid tasks, five methods, five seeds; then the figure.
#
#   scripts/fig4b.sh                              everything, as in the paper (a GPU, and HumanoidBench: rl/README.md)
#   scripts/fig4b.sh walk                         one panel: walk, balance, run
#   scripts/fig4b.sh walk seed=0 device=cuda:1    options for every run
#   scripts/fig4b.sh small                        Gymnasium's Humanoid-v5 on a CPU (docs/results/sac.md)
#
# Started again, it skips what is done and goes on where it was interrupted. The first half is trained once a seed. Many
# at once: hydra/launcher=cores or slurm.
set -euo pipefail

panels=(walk balance run)
if [[ $# -gt 0 && $1 != *=* ]]; then
    panels=("$1")
    shift
fi
for panel in "${panels[@]}"; do
    if [[ $panel == small ]]; then
        sweep=(seed=0,1,2)
    else
        sweep=("experiment=fig4b_h1_$panel" seed=0,1000,2000,3000,4000)
    fi
    sweep+=(method=base,full_reset,snp,pi,fire)
    for option in "$@"; do  # a method or seed that is given replaces ours
        for i in "${!sweep[@]}"; do
            [[ ${option%%=*} == "${sweep[$i]%%=*}" ]] && unset "sweep[$i]"
        done
        sweep=(${sweep[@]+"${sweep[@]}"})
    done
    python -m rl.sac -m "${sweep[@]}" "$@"
done
python analysis/make_figures.py
