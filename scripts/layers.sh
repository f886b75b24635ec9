#!/usr/bin/env bash
# Which layers of a vision transformer to project: queries and keys (the paper's choice), attention, perceptrons, all.
#
#   scripts/layers.sh                 CIFAR-100 with ViT-Tiny, rows a to c of figure 2 (data in ./data; a GPU)
#   scripts/layers.sh a_cifar100      one panel of figure 2
#   scripts/layers.sh digits          a small transformer on the digits, on a CPU
#   scripts/layers.sh smoke           runs every part once, learns little
#
# The table is runs/layers/figures/tables/convergence.md. Started again, it skips finished runs and resumes others.
set -euo pipefail
source "$(dirname "$0")/panels.sh"

runs=${RUNS:-runs/layers}
sizes=digits
panels=(a_cifar100 b_cifar100 c_cifar100)
options_of() {
    local setting="experiment=fig2$1 seed=1,2,3" layouts=qk,attention,mlp,all
    local vit="model=vit_tiny model.patch_size=2 model.dim=32 model.depth=3 model.heads=2 model.dim_head=16 model.mlp_dim=64"
    local warm="benchmark=warm_start dataset.pixel_noise=0.4"
    case $1 in
        smoke) setting="$warm $vit seed=1" layouts=qk,all ;;
        digits) setting="$warm $vit seed=1,2,3" ;;
    esac
    echo "$setting method=base,full_reset"
    echo "$setting method=fire method.layout=$layouts"
}
run_panels vision.train "$@"
