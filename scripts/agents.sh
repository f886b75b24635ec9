#!/usr/bin/env bash
# docs/results/agents.*: agents on streams of control tasks, every method tuned alike on other seeds. Hours on one core;
# MinAtar and the high replay ratio need pip install -e ".[minatar,dmc]".
# Started again, it goes on where it stopped: trials in the table and finished runs are skipped.
#
#   scripts/agents.sh                                all streams, all methods, then the tables
#   scripts/agents.sh continual_cartpole             one stream
#   scripts/agents.sh continual_cartpole base,fire   some methods of it
#   scripts/agents.sh page                           the tables alone, from the csv files
#   scripts/agents.sh smoke                          runs one method on CartPole once, into runs/smoke
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-runs/agents} results=${RESULTS:-docs/results/agents}
case ${1:-all} in
    page) ;;
    all) python -m scripts.agents_runs out="$out" csv="$results" ;;
    smoke)
        out=${RUNS:-runs/smoke}/agents results=$out/tables
        python -m scripts.agents_runs out="$out" csv="$results" setting=continual_cartpole method=fire_head_kept smoke=true
        ;;
    *) python -m scripts.agents_runs out="$out" csv="$results" setting="$1" ${2:+"method=$2"} ;;
esac
python analysis/make_tables.py agents --results "$results" --figures
