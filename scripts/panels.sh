# Sourced by fig2.sh, fig4a.sh and fig4b.sh. They set `panels`, the figure's panels, and define `options_of <panel>`, which
# prints the options of a panel's sweep.

# run_panels <program> [panel] [option=value ...]: one sweep for the panel, or for each of them; then the figure.
# An option that is given replaces the panel's own.
run_panels() {
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    local program=$1 panel option sweep
    shift
    if [[ $# -gt 0 && $1 != *=* ]]; then
        panels=("$1")
        shift
    fi
    for panel in "${panels[@]}"; do
        sweep=()
        for option in $(options_of "$panel"); do
            [[ " $* " == *" ${option%%=*}="* ]] || sweep+=("$option")
        done
        python -m "$program" -m ${sweep[@]+"${sweep[@]}"} "$@"
    done
    python analysis/make_figures.py
}
