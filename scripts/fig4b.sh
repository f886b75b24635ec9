#!/usr/bin/env bash
# Figure 4b of the paper: SAC on three humanoid tasks, five methods, five seeds; then the figure.
#
#   scripts/fig4b.sh                              everything, as in the paper (a GPU, and HumanoidBench: docs/rl.md)
#   scripts/fig4b.sh walk                         one panel: walk, balance, run
#   scripts/fig4b.sh walk seed=0 device=cuda:1    options for every run
#   scripts/fig4b.sh --dry-run                    prints every command
#   scripts/fig4b.sh small                        Gymnasium's Humanoid-v5 on a CPU (docs/studies/sac/index.md)
#   scripts/fig4b.sh smoke                        runs every part once on a pendulum, learns nothing
#
# Started again, it skips finished runs and resumes unfinished ones. The first half is trained once a seed. To run several
# jobs at once: hydra/launcher=cores or slurm.
set -euo pipefail
source "$(dirname "$0")/panels.sh"

disk="8 GB" sizes=small
panels=(walk balance run)
options_of() {
    local methods=base,full_reset,snp,pi,fire
    case $1 in
        smoke) echo "method=$methods env=double_pendulum env_steps=400 eval_every=100 batch_size=16 seed=1" ;;
        small) echo "env=humanoid method=$methods seed=0,1,2" ;;
        *) echo "method=$methods experiment=fig4b_h1_$1 seed=0,1000,2000,3000,4000" ;;  # the authors'
    esac
}
run_panels rl.sac "$@"
