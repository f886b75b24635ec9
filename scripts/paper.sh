#!/usr/bin/env bash
# Every figure and table of the paper, one after the other: figures 2, 3, 4a, table 10 and 4b (a GPU; docs/paper.md says hours).
#
#   scripts/paper.sh                            started again, it skips finished runs and resumes unfinished ones
#   scripts/paper.sh hydra/launcher=cores       options for every run but figure 3's, which takes GPUS=8 from the environment
#   RUNS=/disk/runs scripts/paper.sh            each figure in a folder of its own there
#   scripts/paper.sh --dry-run                  prints every command
#
# A figure that fails does not stop the others; it is named at the end.
set -euo pipefail
source "$(dirname "$0")/panels.sh"
cd "$(dirname "$0")/.."
told "$@"
for option in ${words[@]+"${words[@]}"}; do
    [[ $option == *=* ]] || refuse "$option" "option=value" --dry-run
    [[ $option != paths.runs=* ]] || refuse "$option" "RUNS=${option#paths.runs=} before the command"
done
failed=
for figure in fig2 fig3 fig4a table10 fig4b; do
    code=0 own=(${words[@]+"${words[@]}"})
    [ $figure != fig3 ] || own=(paper "${GPUS:-8}")
    # Figures are drawn from all runs of their folder, so that those of table 10 must not lie in figure 2's.
    env ${RUNS:+RUNS="$RUNS/$figure"} "scripts/$figure.sh" ${dry:+--dry-run} ${own[@]+"${own[@]}"} || code=$?
    case $code in
        0) ;;
        75 | 129 | 130 | 143) exit $code ;;  # a signal: the same command goes on
        *) failed+=" $figure ($code)" ;;
    esac
done
[[ ! $failed ]] || { echo "error: these did not end well:$failed" >&2 && exit 3; }
