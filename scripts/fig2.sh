#!/usr/bin/env bash
# Figure 2 of the paper: continual vision, three benchmarks, eleven methods, three seeds; then the figure.
#
#   scripts/fig2.sh                                    everything (CIFAR-10, CIFAR-100 and Tiny-ImageNet in ./data; a GPU)
#   scripts/fig2.sh a_cifar10                          one panel
#   scripts/fig2.sh a_cifar10 seed=0 device=cpu        options for every run
#   scripts/fig2.sh a_cifar10 scale=smoke              does everything once, learns little
#
# Started again, it skips what is done and goes on where it was interrupted. The first phase of row a is trained once
# for all methods. Many at once: hydra/launcher=joblib or submitit_slurm.
set -euo pipefail

panels=(a_cifar10 a_cifar100 a_tinyimagenet b_cifar10 b_cifar100 b_tinyimagenet c_cifar100 c_tinyimagenet)
if [[ $# -gt 0 && $1 != *=* ]]; then
    panels=("$1")
    shift
fi
sweep=()
[[ " $* " == *" method="* ]] || sweep+=(method=base,full_reset,snp,dash,parseval,l2init,cbp,redo,snr,muon,fire)
[[ " $* " == *" seed="* ]] || sweep+=(seed=0,1,2)

for panel in "${panels[@]}"; do
    python -m vision.train -m "experiment=fig2$panel" ${sweep[@]+"${sweep[@]}"} "$@"
done
python analysis/make_figures.py
