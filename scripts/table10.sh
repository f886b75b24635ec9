#!/usr/bin/env bash
# Table 10 of the paper (appendix E.2) with scores: steps of Newton-Schulz and their start -> DfI, SFE, final accuracy.
#
#   scripts/table10.sh                 warm start as in figure 2, row a (CIFAR-10, CIFAR-100, Tiny-ImageNet in ./data; a GPU)
#   scripts/table10.sh a_cifar10       one panel of figure 2
#   scripts/table10.sh grid            four starts instead of the paper's (the Frobenius norm)
#   scripts/table10.sh --dry-run       prints every command
#   scripts/table10.sh digits          the digits, on a CPU (docs/studies/table10/index.md)
#   scripts/table10.sh smoke           runs every part once, learns little
#
# The table is runs/table10/figures/tables/convergence.md. Started again, it skips finished runs and resumes others.
set -euo pipefail
source "$(dirname "$0")/panels.sh"

runs=${RUNS:-runs/table10}
disk="30 GB" sizes="grid digits"
panels=(a_cifar10 a_cifar100 a_tinyimagenet)
options_of() {
    local setting="experiment=fig2$1 seed=1,2,3 paths.cache=runs/.cache" steps=1,2,5,10,15,20,30 starts=frobenius panel
    local warm="benchmark=warm_start dataset.pixel_noise=0.4 model.hidden=64 model.depth=5 model.norm=true"
    case $1 in
        grid)
            for panel in a_cifar10 a_cifar100 a_tinyimagenet; do options_of $panel; done | sed s/=frobenius/=frobenius,spectral,power,schatten4/
            return ;;
        smoke) setting="$warm seed=1" steps=1,10 starts=spectral ;;
        digits) setting="$warm seed=1,2,3,4,5" steps=1,2,5,10,20 starts=frobenius,spectral ;;
    esac
    echo "$setting method=base,full_reset,fire_exact"
    echo "$setting method=fire method.iterations=$steps method.norm_init=$starts"
}
run_panels vision.train "$@"
