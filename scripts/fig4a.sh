#!/usr/bin/env bash
# Figure 4a of the paper: DQN on three games, five methods, five seeds; then the figure.
#
#   scripts/fig4a.sh                                    everything, as in the paper (a GPU; hours: docs/paper.md)
#   scripts/fig4a.sh asterix                            one panel
#   scripts/fig4a.sh asterix seed=1 device=cuda:1       options for every run
#   scripts/fig4a.sh --dry-run                          prints every command
#   scripts/fig4a.sh small                              Breakout on a CPU (docs/studies/dqn/index.md)
#   scripts/fig4a.sh smoke                              runs every part once on CartPole, learns nothing
#
# Started again, it skips finished runs and resumes unfinished ones. The first half is trained once a seed. To run several
# jobs at once: hydra/launcher=cores or slurm.
set -euo pipefail
source "$(dirname "$0")/panels.sh"

disk="4 GB" sizes=small
panels=(asterix beam_rider demon_attack)
options_of() {
    local methods=base,full_reset,snp,pi,fire
    case $1 in
        smoke) echo "method=$methods env=cartpole seed=1" ;;
        small) echo "env=breakout method=$methods seed=0,1,2" ;;
        *) echo "method=$methods experiment=fig4a_$1 seed=1,2,3,4,5" ;;
    esac
}
run_panels rl.dqn "$@"
