# Sourced by the figures' and ablations' scripts. They set `panels`, the parts that are run by default, `sizes`, other words
# that may stand in a panel's place, and `disk`, what the whole takes; and define `options_of <panel>`, which prints the
# options of a panel's sweep; a line each where it has several. `runs` may be set to a folder of their own. Every script has
# the panel `smoke`, which runs every part once, within seconds.

dry=
# run <command>: run it, or print it alone under --dry-run. What is started reads nothing of the loop's own input.
run() {
    if [[ $dry ]]; then echo "$*"; else "$@" < /dev/null; fi
}
# train <command>: run a training command. If it ends with 3, as after a run that diverged, the others go on, and the whole
# ends with 3; any other error ends the whole at once. torchrun ends with 1 whatever its processes have ended with.
not_trained=0
train() {
    local code=0
    run "$@" || code=$?
    [[ $1 != torchrun || $code != 1 ]] || code=3
    case $code in
        0) ;;
        3) not_trained=3 ;;
        *) exit $code ;;
    esac
}

# told <word ...>: answers --help, and --dry-run as the first word; words that are left are in `words`.
told() {
    words=("$@")
    case ${1:-} in
        -h | --help)
            sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
            echo "--dry-run before the other words prints the commands. After a preemption the same command goes on:"
            echo "    while $0 ${*:2}; [ \$? = 75 ]; do sleep 60; done"
            exit ;;
        --dry-run) dry=yes words=("${@:2}") ;;
    esac
}

# refuse <word> <accepted ...>: one line, before anything starts.
refuse() {
    echo "error: $1 is unknown; accepted: ${*:2}" >&2
    exit 2
}

# run_panels <program> [--dry-run] [panel] [option=value ...]: the sweeps of the panel, or of each of them; then figures and
# tables. An option that is given replaces the panel's own; <method>.option=value is for that method alone.
run_panels() {
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    local program=$1 panel line option sweep folder given= all=(${panels[@]} ${sizes:-} smoke)
    told "${@:2}"
    set -- ${words[@]+"${words[@]}"}
    if [[ $# -gt 0 && $1 != *=* ]]; then
        [[ " ${all[*]} " == *" $1 "* ]] || refuse "$1" "${all[@]}" "option=value"
        panels=("$1")
        shift
    elif [[ ${disk:-} ]]; then
        echo "the whole takes about $disk of disk and can be stopped and started again at any time"
    fi
    for option in "$@"; do
        [[ $option == *=* ]] || refuse "$option" "option=value after the panel"
        [[ $option != paths.runs=* ]] || given=${option#paths.runs=}
    done
    runs=${given:-${RUNS:-${runs:-}}}
    if [[ ${panels[0]} == smoke ]]; then
        runs=${given:-${RUNS:-runs/smoke}}
        set -- scale=smoke tracker=none progress=false "$@"
    fi
    [[ $dry ]] || data_is_there "$program" "$@"
    for panel in "${panels[@]}"; do
        while read -r line; do
            sweep=()
            for option in $line ${runs:+"paths.runs=$runs"}; do
                [[ " $* " == *" ${option%%=*}="* ]] || sweep+=("$option")
            done
            start "$program" ${sweep[@]+"${sweep[@]}"} "$@"
        done < <(options_of "$panel")
    done
    if [[ $runs ]]; then
        run python analysis/make_figures.py --runs "$runs" --out "$runs/figures" --export "$runs/results.csv"
    else  # the program's own folder, beside which other scripts have theirs
        folder=${program%.train}
        run python analysis/make_figures.py --runs "runs/${folder#rl.}"
    fi
    return $not_trained
}

# data_is_there <program> [option=value ...]: opens the data of all panels, so that what is missing is said before the first job.
data_is_there() {
    local panel line lines=()
    for panel in "${panels[@]}"; do
        while read -r line; do lines+=("$line ${*:2}"); done < <(options_of "$panel")
    done
    python -m scripts.data_is_there "$1" "${lines[@]}" < /dev/null
}

# start <program> <option ...>: a sweep; methods that have options of their own are sweeps of their own.
start() {
    local program=$1 option name methods=, shared=() own=
    for option in "${@:2}"; do [[ $option != method=* ]] || methods=,${option#method=},; done
    for option in "${@:2}"; do
        name=${option%%.*}
        if [[ $name != *=* && $methods == *",$name,"* ]]; then
            own+=" $option"
        elif [[ $option != method=* ]]; then
            shared+=("$option")
        fi
    done
    if [[ " $* " == *" hydra/launcher=slurm "* ]]; then  # else jobs hold GPUs while one of them trains what they share
        train python -m "$program" -m method=base only_first_phase=true $(printf "%s\n" "${shared[@]}" | grep -v ^method\\.)
    fi
    for name in $(for option in $own; do echo "${option%%.*}"; done | sort -u); do
        methods=${methods/,$name,/,}
        train python -m "$program" -m method="$name" "${shared[@]}" $(for option in $own; do
            [[ $option != "$name".* ]] || echo "method.${option#*.}"
        done)
    done
    methods=${methods#,} methods=${methods%,}
    [[ ! $methods ]] || train python -m "$program" -m method="$methods" "${shared[@]}"
}
