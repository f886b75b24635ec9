#!/usr/bin/env bash
# Figure 2 of the paper: continual vision, three benchmarks, eleven methods, three seeds; then the figure.
#
#   scripts/fig2.sh                                    everything (CIFAR-10, CIFAR-100 and Tiny-ImageNet in ./data; a GPU)
#   scripts/fig2.sh a_cifar10                          one panel
#   scripts/fig2.sh a_cifar10 seed=1 device=cpu        options for every run
#   scripts/fig2.sh fire.norm_init=frobenius           an option for one method alone
#   scripts/fig2.sh --dry-run                          prints every command
#   scripts/fig2.sh smoke                              runs every part once on the digits, learns little
#
# Started again, it skips finished runs and resumes unfinished ones. The first phase of row a is trained once for all
# methods. To run several jobs at once: hydra/launcher=cores or slurm.
set -euo pipefail
source "$(dirname "$0")/panels.sh"

disk="45 GB"  # the last checkpoint of 264 runs: weights and Adam's two moments
panels=(a_cifar10 a_cifar100 a_tinyimagenet b_cifar10 b_cifar100 b_tinyimagenet c_cifar100 c_tinyimagenet)
options_of() {
    local methods=base,full_reset,snp,dash,parseval,l2init,cbp,redo,snr,muon,fire
    if [[ $1 == smoke ]]; then
        echo "benchmark=warm_start method=base,fire,muon seed=1"
        echo "benchmark=continual benchmark.chunks=2 method=base,fire seed=1"
        echo "benchmark=class_incremental benchmark.chunks=2 method=base,fire seed=1"
    else
        echo "experiment=fig2$1 method=$methods seed=1,2,3"
    fi
}
run_panels vision.train "$@"
