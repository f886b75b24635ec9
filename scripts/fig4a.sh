#!/usr/bin/env bash
# Figure 4a of the paper: DQN on three games, five methods, five seeds; then the figure.
#
#   scripts/fig4a.sh                                    everything, as in the paper (a GPU; docs/dqn.md tells the hours)
#   scripts/fig4a.sh asterix                            one panel
#   scripts/fig4a.sh asterix seed=0 device=cuda:1       options for every run
#   scripts/fig4a.sh small                              Breakout on a CPU (docs/results/dqn.md)
#
# Started again, it skips what is done and goes on where it was interrupted. The first half is trained once a seed. Many
# at once: hydra/launcher=cores or slurm.
set -euo pipefail

panels=(asterix beam_rider demon_attack)
if [[ $# -gt 0 && $1 != *=* ]]; then
    panels=("$1")
    shift
fi
methods=method=base,full_reset,snp,pi,fire

for panel in "${panels[@]}"; do
    if [[ $panel == small ]]; then
        sweep=("$methods" seed=0,1,2)
    else
        sweep=("experiment=fig4a_$panel" "$methods" seed=0,1,2,3,4)
    fi
    for option in "$@"; do  # a method or seed that is given replaces ours
        for i in "${!sweep[@]}"; do
            [[ ${option%%=*} == "${sweep[$i]%%=*}" ]] && unset "sweep[$i]"
        done
        sweep=(${sweep[@]+"${sweep[@]}"})
    done
    python -m rl.dqn -m "${sweep[@]}" "$@"
done
python analysis/make_figures.py
