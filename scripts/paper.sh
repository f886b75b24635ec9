#!/usr/bin/env bash
# Every figure and table of the paper, one after the other: figures 2, 3, 4a, 4b and table 10 (a GPU; docs/paper.md says hours).
#
#   scripts/paper.sh               started again, it skips finished runs and resumes unfinished ones
#   scripts/paper.sh --dry-run     prints every command
set -euo pipefail
source "$(dirname "$0")/panels.sh"
cd "$(dirname "$0")/.."
told "$@"
[[ ! ${words[*]:-} ]] || refuse "${words[0]}" --dry-run
for figure in fig2 fig3 fig4a fig4b table10; do
    word=$([ $figure != fig3 ] || echo paper)
    "scripts/$figure.sh" ${dry:+--dry-run} $word
done
