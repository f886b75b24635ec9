#!/usr/bin/env bash
# The paper's runs at their real sizes on tiny data, on a CPU: every method once on every network, and every panel killed,
# resumed and drawn. What would stop or spoil a run after hours does so here, within an hour and a half on one core.
#
#   scripts/dry_run.sh                    what is not done yet; the table: docs/dry_run.csv
#   scripts/dry_run.sh vgg16 a_cifar10    these parts alone, again; `--list` instead: the names of all
#   scripts/dry_run.sh --dry-run          prints every command
#
# Started again, it goes on with the next part. All files: runs/dry_run, or RUNS=
set -euo pipefail
source "$(dirname "$0")/panels.sh"
cd "$(dirname "$0")/.."
told "$@"
run python -m scripts.dry_run ${words[@]+"${words[@]}"}
