#!/usr/bin/env bash
# docs/results/triggers.*: triggers on streams with hidden boundaries, and whether what they measure says how well a network
# will learn. About two and a half hours on one core. Started again, it goes on where it stopped.
#
#   scripts/triggers.sh           everything
#   scripts/triggers.sh smoke     runs every part once, into runs/smoke; learns little
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-runs/triggers} results=docs/results/triggers small=false
if [ "${1:-}" = smoke ]; then
    out=${RUNS:-runs/smoke}/triggers results=$out/triggers small=true
fi
python -m scripts.triggers_runs out="$out" smoke=$small
python -m scripts.triggers_signals out="$out" smoke=$small
python -m scripts.triggers_tables out="$out" csv="$results"
