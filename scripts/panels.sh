# Sourced by the figures' and ablations' scripts. They set `panels`, the parts that are run by default, and define
# `options_of <panel>`, which prints the options of a panel's sweep; a line each where it has several sweeps. `runs` may be
# set to a folder of their own. Every script has the panel `smoke`, which runs every part once, within seconds.

# run_panels <program> [panel] [option=value ...]: the sweeps of the panel, or of each of them; then figures and tables.
# An option that is given replaces the panel's own.
run_panels() {
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    local program=$1 panel line option sweep
    shift
    if [[ $# -gt 0 && $1 != *=* ]]; then
        panels=("$1")
        shift
    fi
    if [[ ${panels[0]} == smoke ]]; then
        runs=${RUNS:-runs/smoke}
        set -- scale=smoke tracker=none progress=false "$@"
    fi
    for panel in "${panels[@]}"; do
        while read -r line; do
            sweep=()
            for option in $line ${runs:+"paths.runs=$runs"}; do
                [[ " $* " == *" ${option%%=*}="* ]] || sweep+=("$option")
            done
            python -m "$program" -m ${sweep[@]+"${sweep[@]}"} "$@" < /dev/null
        done < <(options_of "$panel")
    done
    python analysis/make_figures.py ${runs:+--runs "$runs" --out "$runs/figures" --export "$runs/results.csv"}
}
