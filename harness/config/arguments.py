"""The command line, read by Hydra's own parser and checked before Hydra composes anything.

Hydra accepts `+epoch=3`, an option that no program reads, and its message about a value that it cannot read says only
where its parser stopped. Here an option that is not declared is refused, with or without a sign before it, and the
message says what to write instead. A single run with plain values is left to Hydra, because composing it here first
would take as long again; only if Hydra refuses it does `refuse_unknown` look for the reason.
"""

import contextlib
import functools
import itertools
import math
import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NoReturn

# Hydra has no public parser of its flags. This one is what `hydra.main` itself uses, so -m, --config-dir and the others
# mean the same here; a parser of our own would have to repeat all of Hydra's flags.
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.direction import direction_of
from harness.config.errors import ConfigError, near
from harness.config.groups import (
    CONF,
    choices,
    compose_with_hydra,
    groups_of,
    quoted,
    register_parts_of_chain,
    unknown_choice,
)
from harness.config.paths import expanded, place

DATA_OPTIONS = ("experiment", "benchmark", "dataset", "env", "paths", "tokenizer")  # they say which data a run opens
FOLDERS_OF_HYDRA = ("hydra.run.dir", "hydra.sweep.dir")
HOW_TO_WRITE = "options are written option=value, and --help names them"


class CommandLine(Namespace):
    """The flags and options of a command line, as Hydra's parser returns them, and what was found out about its sweep.

    Attributes:
        overrides: the options, such as `method=fire`.
        multirun: whether -m was given.
        config_dir: the user's folder of groups, without `~`.
        help: whether --help was given.
        sweeps: the options of each sweep that has to be run, mostly of one; see `_split_sweep`.
        notes: lines about these sweeps for the user.
    """

    overrides: list[str]
    multirun: bool
    config_dir: str | None
    help: bool
    sweeps: list[list[str]]
    notes: list[str]


def read_arguments(config_name: str, words: Sequence[str] | None = None) -> CommandLine:
    """Read and check the flags and options of a command line, in any order.

    The folder of --config-dir is also expanded in `sys.argv`, which Hydra reads again, and the parts of a chain are
    made known to Hydra.

    Args:
        config_name: name of the program's root file in `conf/`, such as `vision`.
        words: the words of the command line; None: those of this process.

    Raises:
        ConfigError: a flag is unknown, or an option cannot be read, names nothing, or has several values without -m.
    """
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; {HOW_TO_WRITE}")

    parser.error = refuse  # type: ignore[method-assign]
    arguments = parser.parse_intermixed_args(words, CommandLine())
    if arguments.config_dir is not None:
        arguments.config_dir = _expand_config_dir(arguments.config_dir)
    arguments.sweeps, arguments.notes = [list(arguments.overrides)], []
    overrides = [parse_option(text) for text in arguments.overrides]
    _check_choices(overrides, config_name, arguments.config_dir)
    if not _is_left_to_hydra(overrides, arguments):
        _check_options(overrides, config_name, arguments)
    _check_chain_options(overrides)
    if arguments.multirun:
        _refuse_searched_chains(overrides)
    register_parts_of_chain(arguments.overrides, Path(arguments.config_dir) if arguments.config_dir else None)
    return arguments


def _expand_config_dir(given: str) -> str:
    """Return the folder of --config-dir without `~`, and write it into `sys.argv`: Hydra, which reads it, knows no `~`.

    Raises:
        ConfigError: there is no such folder, or a file in it would be ignored.
    """
    folder = expanded(given)
    if not given or not folder.is_dir():
        raise ConfigError(f"--config-dir={given} is no folder: it holds groups of yours as conf/ does")
    for file in sorted(folder.glob("*/**/*.yaml")):
        ours = CONF / file.relative_to(folder)
        if ours.exists() and ours.read_bytes() != file.read_bytes():
            raise ConfigError(f"{file} has the name of a file of this program, which would be taken: rename it")
    flag = re.compile(rf"(--config-dir=|-cd=?)?{re.escape(given)}")
    sys.argv = [(m[1] or "") + str(folder) if (m := flag.fullmatch(word)) else word for word in sys.argv]
    return str(folder)


def refuse_unknown(config_name: str, arguments: CommandLine) -> None:
    """Refuse options that name nothing, with the nearest names.

    It is called where Hydra has refused a command line whose check `read_arguments` had left to Hydra.

    Raises:
        ConfigError: an option is unknown.
    """
    _check_options([parse_option(text) for text in arguments.overrides], config_name, arguments)


def _is_left_to_hydra(overrides: Sequence[Override], arguments: CommandLine) -> bool:
    """Return whether Hydra itself refuses whatever `_check_options` would: plain values, and certainly a single run."""
    is_plain = all(
        override.type == OverrideType.CHANGE
        and override.package is None
        and not override.is_sweep_override()
        and override.key_or_group not in ("hydra.mode", "hydra.searchpath")
        for override in overrides
    )
    return is_plain and not arguments.multirun and arguments.config_dir is None


def parse_option(text: str) -> Override:
    """Parse one option of the command line, such as `lr=0.1` or `method=base,fire`.

    Raises:
        ConfigError: Hydra cannot read it; the message says how to write it.
    """
    if not text.partition("=")[0].strip("+~"):
        raise ConfigError(f"{text} names no option; {HOW_TO_WRITE}")
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(f"{text} cannot be read{_how_to_write(text, error)}") from error
    _check_path(override)
    return override


def _how_to_write(text: str, error: HydraException) -> str:
    """Return how to write what was probably meant by an option that Hydra's parser refuses."""
    name, equals, value = text.partition("=")
    if not equals and re.fullmatch(r"[+~]*[\w./]+:[^:].*", text):
        return f": an option and its value are joined by =, {text.replace(':', '=', 1)}"
    if name != name.strip():
        return f": no space stands beside =, {name.strip()}={value.strip()}"
    if not equals or not _is_readable(f"{name}=1"):
        return f"; {HOW_TO_WRITE}"
    if value.startswith("="):
        return f": one = stands between an option and its value, {name}={value.lstrip('= ')}"
    if re.search(r"^\s*,|,\s*,|,\s*$", value):
        return ": a value between its commas is empty, and no space stands behind a comma"
    in_quotes = f"stands in quotes within quotes, {shlex.quote(f'{name}={quoted(value)}')}"
    if re.fullmatch(r"\w+\(.*\)", value, re.DOTALL):
        reason = str(error).splitlines()[0].rpartition(": ")[2]
        return f": {reason}; a text with parentheses {in_quotes}"
    open_ones = [mark for mark, closing in ("[]", "{}", "()") if value.count(mark) > value.count(closing)]
    if open_ones:
        return f": {open_ones[0]} is not closed; as part of a text it {in_quotes}"
    return f": a value with other characters than letters, digits and /-_.:%@?$ {in_quotes}"


def _is_readable(text: str) -> bool:
    with contextlib.suppress(HydraException):
        OverridesParser.create().parse_override(text)
        return True
    return False


def _check_path(override: Override) -> None:
    """Refuse a path of which Hydra would make another one.

    Hydra reads 1e3 as a number and true as a boolean, and writes them in another way: 1000.0 and True. For its own
    folders an empty path is the folder where the program was started, and `~` a folder of that name.

    Raises:
        ConfigError: the message says how the path is written.
    """
    name, value = override.key_or_group, override.value()
    text = str(override.input_line).partition("=")[2].strip()
    if name.startswith("paths.") and isinstance(value, int | float) and str(value) != text:
        written = shlex.quote(f"{name}={quoted(text)}")
        raise ConfigError(f"{name}={text} is read as {value}: a text stands in quotes within quotes, {written}")
    if name in FOLDERS_OF_HYDRA and isinstance(value, str):
        if problem := place(name, value):
            raise ConfigError(problem)
        if value.startswith("~"):
            raise ConfigError(
                f"{name}={value}: Hydra does not replace ~; write {shlex.quote(f'{name}={expanded(value)}')}"
            )


def values_of(override: Override) -> list[str]:
    """Return the values of an option as text.

    A plain option has one, an option of a sweep has several, and a search's range, such as interval(0, 1), has none.
    """
    value: Any = override.value()
    if isinstance(value, Glob):
        return list(value.filter(list(choices(override.key_or_group))))
    if override.is_sweep_override():
        return list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    return [value.text if isinstance(value, QuotedString) else str(value)]


def number_of_jobs(words: Sequence[str]) -> int:
    """Return how many jobs a sweep with these words has: the product of its options' numbers of values."""
    overrides = [parse_option(word) for word in words if not word.startswith("-") and "=" in word]
    return math.prod(len(values_of(override)) for override in overrides if override.is_sweep_override())


def _check_choices(overrides: Sequence[Override], config_name: str, config_dir: str | None) -> None:
    """Refuse choices that a group has neither in conf/ nor in the user's own folder, and those of other programs."""
    for override in overrides:
        group = override.key_or_group
        if group == "method.of" and isinstance(override.value(), list):
            text = str(override.input_line).partition("=")[2]
            raise ConfigError(f"method.of={text} is written method.of={text.strip('[]').replace(',', '+')}")
        if group not in groups_of(config_name) or override.package is not None:
            continue
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise ConfigError(f"{override.input_line}: the program has one {group}, chosen by {group}=<name>")
        if isinstance(override.value(), list) and group != "experiment":
            value = str(override.input_line).partition("=")[2]
            raise ConfigError(f"{group}={value}: several choices are written {group}={value.strip('[]')}, with -m")
        if isinstance(override.value(), list | dict):
            continue
        users_choices = [path.stem for path in Path(config_dir, group).glob("*.yaml")] if config_dir else []
        for name in values_of(override):
            if name in users_choices or name in choices(group, config_name) or (name == "null" and not choices(group)):
                continue
            if name in choices(group):
                accepted = ", ".join(choices(group, config_name))
                raise ConfigError(f"{group}={name} is not for {config_name}; accepted: {accepted}")
            if override.value() is None:
                accepted = ", ".join(choices(group, config_name))
                raise ConfigError(f"{group}=null chooses nothing: leave it out, or name one of {accepted}")
            raise ConfigError(unknown_choice(group, name, config_name))


def _check_options(overrides: Sequence[Override], config_name: str, arguments: CommandLine) -> None:
    """Check options against the configurations that the chosen files of groups make.

    An option that none of them has is refused, and so are several values without -m. In `arguments`, a search is told
    whether more or less is better, and a sweep is split where one of its choices lacks an option (`_split_sweep`).

    Raises:
        ConfigError: an option is refused.
    """
    config_dir = Path(arguments.config_dir) if arguments.config_dir else None
    folders = [CONF, *([config_dir] if config_dir else [])]
    hydra_options = [str(o.input_line) for o in overrides if o.key_or_group in ("hydra.searchpath", "hydra.mode")]
    group_overrides: list[Override] = []
    other_overrides: list[Override] = []
    for override in overrides:
        name = override.key_or_group
        is_group = name.startswith("hydra/") or any((folder / name).is_dir() for folder in folders)
        (group_overrides if is_group else other_overrides).append(override)
    combinations = _choices_to_compose(group_overrides)

    @functools.cache
    def composed(i: int) -> DictConfig:
        return compose_with_hydra(config_name, [*hydra_options, *combinations[i]], config_dir)

    try:
        sweeps = arguments.multirun or str(composed(0).hydra.mode).endswith("MULTIRUN")
        for override in other_overrides:
            if override.package is None:
                _check_declared(override, composed, len(combinations))
        _check_callbacks(other_overrides, composed)
        if sweeps:
            swept = _swept_by_params(overrides, composed(0))
            _check_choices(swept, config_name, arguments.config_dir)
            for override in swept:
                if override.key_or_group not in groups_of(config_name) and override.package is None:
                    _check_declared(override, composed, len(combinations))
    except (HydraException, OmegaConfBaseException):
        return  # Hydra will say so when it composes the whole command line
    _refuse_counts_below_one(overrides)
    if not sweeps:
        _refuse_several_values(overrides, group_overrides)
        return
    _add_direction(arguments, overrides, composed(0))
    if not str(composed(0).hydra.sweeper.get("_target_")).endswith(".BasicSweeper"):
        return
    _refuse_ranges(overrides)
    for group_override in group_overrides:
        if len(values_of(group_override)) > 1:

            def composed_with(text: str, group: str = group_override.key_or_group) -> DictConfig:
                """Return the configuration with this choice for the group, and the first one for each other group."""
                chosen = [text if other.partition("=")[0] == group else other for other in combinations[0]]
                return composed(combinations.index(chosen))

            _split_sweep(arguments, overrides, group_override, composed_with)


def _refuse_counts_below_one(overrides: Sequence[Override]) -> None:
    """Refuse a search with fewer than one trial or job."""
    for override in overrides:
        number = override.value() if override.key_or_group in ("hydra.sweeper.n_trials", "hydra.sweeper.n_jobs") else 1
        if isinstance(number, int) and number < 1:
            raise ConfigError(f"{override.key_or_group} must be at least 1, got {number}")


def _refuse_several_values(overrides: Sequence[Override], group_overrides: Sequence[Override]) -> None:
    """Refuse an option with several values, which needs -m."""
    for override in overrides:
        if override.is_sweep_override():
            name, _, value = str(override.input_line).partition("=")
            how_to_quote = f"""; a list is written {name}=[{value}], and a text '{name}="{value}"'"""
            raise ConfigError(
                f"{name}={value} has several values: add -m to run each"
                f"{'' if override in group_overrides else how_to_quote}"
            )


def _add_direction(arguments: CommandLine, overrides: Sequence[Override], config: DictConfig) -> None:
    """Tell a search whether more or less of the headline is better, unless the user has."""
    if "hydra.sweeper.direction" in [override.key_or_group for override in overrides]:
        return
    if direction := direction_of(config):
        for command_line in (arguments.overrides, *arguments.sweeps):
            command_line.append(f"hydra.sweeper.direction={direction}")


def _refuse_ranges(overrides: Sequence[Override]) -> None:
    """Refuse a range, from which only a search can draw."""
    for override in overrides:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise ConfigError(f"{override.input_line}: a search draws from a range, hydra/sweeper=optuna")


def _check_callbacks(overrides: Sequence[Override], composed: Callable[[int], DictConfig]) -> None:
    """Refuse a callback of Hydra that no class stands behind: Hydra would go on after a warning at each event.

    Raises:
        ConfigError: nothing gives the callback a `_target_`.
    """
    for override in overrides:
        if not (callback := re.match(r"hydra\.callbacks\.\w+", override.key_or_group)):
            continue
        of_callback = [o for o in overrides if o.key_or_group.startswith(callback[0])]
        if _select(composed(0), callback[0]) is None and "_target_" not in " ".join(
            str(o.input_line) for o in of_callback
        ):
            raise ConfigError(f"{override.input_line}: {callback[0]} has no _target_, the class of the callback")


def _swept_by_params(overrides: Sequence[Override], config: DictConfig) -> list[Override]:
    """Return the options that `hydra.sweeper.params` varies in a sweep, which an experiment may set.

    Args:
        overrides: the options of the command line.
        config: composed of the chosen files.

    Raises:
        ConfigError: it is set on the command line; Hydra cannot add anything to it there.
    """
    params = config.hydra.sweeper.get("params")
    for override in overrides:
        if override.key_or_group.startswith("hydra.sweeper.params") and override.value() is not None:
            raise ConfigError(f"{override.input_line}: on the command line an option is varied by itself, seed=0,1 -m")
    return [parse_option(f"{name}={value}") for name, value in (params or {}).items()]


def _split_sweep(
    arguments: CommandLine,
    overrides: Sequence[Override],
    group_override: Override,
    composed: Callable[[str], DictConfig],
) -> None:
    """Split a sweep so that each choice of a group runs with the options that it has.

    `method=base,fire method.iterations=1,5` becomes `method=base` and `method=fire method.iterations=1,5`: base has no
    such option and trains once.

    Args:
        arguments: the command line; its `sweeps` and `notes` are changed.
        overrides: the options of the command line.
        group_override: the option that chooses several files of one group.
        composed: `composed("method=base")` returns the configuration with this one of the choices.
    """
    group = group_override.key_or_group
    options = [o for o in overrides if o.key_or_group.startswith(f"{group}.") and str(o.input_line)[0] not in "+~"]
    choices_by_missing: dict[tuple[str, ...], list[str]] = {}  # from the options that choices lack to the choices
    for choice in values_of(group_override):
        config = composed(f"{group}={choice}")
        missing = tuple(
            str(o.input_line) for o in options if o.key_or_group not in _sibling_options(o.key_or_group, config)
        )
        choices_by_missing.setdefault(missing, []).append(choice)
    if len(choices_by_missing) == 1:
        return
    sweeps = []
    for sweep in arguments.sweeps:
        for missing, chosen in choices_by_missing.items():
            options_left = [text for text in sweep if text not in missing]
            choose = f"{group}={','.join(chosen)}"
            sweeps.append([choose if text == group_override.input_line else text for text in options_left])
    arguments.sweeps = sweeps
    for missing, chosen in choices_by_missing.items():
        if missing:
            arguments.notes.append(
                f"{', '.join(missing)} left out for {group}={','.join(chosen)}, without such an option"
            )


def configs_of_data_options(config_name: str, command_lines: Sequence[list[str]]) -> Iterator[DictConfig]:
    """Yield a configuration for each combination of the options in `DATA_OPTIONS` that sweeps have.

    Several of them may open the same data set. Single runs are left out, because a run opens its data at once anyway,
    and sweeps on Slurm, because its machines may have other disks.

    Args:
        config_name: name of the program's root file in `conf/`.
        command_lines: the words of each sweep, which `read_arguments` has checked.
    """
    composed = set[tuple[str, ...]]()
    for words in command_lines:
        arguments = get_args_parser().parse_intermixed_args(words)
        overrides = [parse_option(text) for text in arguments.overrides]
        launcher = next((str(o.value()) for o in overrides if o.key_or_group == "hydra/launcher"), "")
        if not arguments.multirun or "slurm" in launcher:
            continue
        texts_by_option = []
        for override in overrides:
            if override.key_or_group.partition(".")[0] not in DATA_OPTIONS:
                continue
            if override.is_sweep_override():
                texts_by_option.append([f"{override.get_key_element()}={value}" for value in values_of(override)])
            else:
                texts_by_option.append([str(override.input_line)])
        for options in itertools.product(*(texts for texts in texts_by_option if texts)):
            if options not in composed:
                composed.add(options)
                folder = Path(arguments.config_dir) if arguments.config_dir else None
                yield compose_with_hydra(config_name, options, folder)


def _refuse_searched_chains(overrides: Sequence[Override]) -> None:
    """Refuse `tuned=searched` of chains in a sweep, whose jobs would all take the values of one chain.

    Hydra reads which file has a chain's values before it reads `method.of` of a job.
    """
    chosen = {(o.key_or_group, value) for o in overrides if o.is_sweep_override() for value in values_of(o)}
    chosen |= {(o.key_or_group, str(o.value())) for o in overrides if not o.is_sweep_override()}
    if {("method", "chain"), ("tuned", "searched")} <= chosen:
        raise ConfigError("tuned=searched with method=chain is for single runs: leave out -m, and start one for each")


def _check_chain_options(overrides: Sequence[Override]) -> None:
    """Refuse `method.parts.<name>.` options of methods that no chain of the command line names.

    The files of those methods are not read, so Hydra would not know the option either.
    """
    chains = [chain for override in overrides if override.key_or_group == "method.of" for chain in values_of(override)]
    chained = {name for chain in chains for name in chain.split("+")}
    for override in overrides:
        option = override.key_or_group
        if chains and option.startswith("method.parts."):
            method = option.removeprefix("method.parts.").partition(".")[0]
            if method and method not in chained:
                raise ConfigError(f"{option} has no effect: method.of={','.join(chains)} does not name {method}")


def _choices_to_compose(group_overrides: Sequence[Override]) -> list[list[str]]:
    """Return combinations of choices of groups in which each choice occurs, however many a sweep combines.

    The first combination has the first choice of each group. Each other choice stands in one more combination, beside
    the first choices of the other groups. So the number of configurations to compose grows as the number of choices.
    """
    texts_by_group = []
    for override in group_overrides:
        if not override.is_delete():
            texts = [f"{override.get_key_element()}={value}" for value in values_of(override)]
            texts_by_group.append(texts or [str(override.input_line)])
    first = [texts[0] for texts in texts_by_group]
    combinations = [first]
    for i, texts in enumerate(texts_by_group):
        combinations += [[*first[:i], text, *first[i + 1 :]] for text in texts[1:]]
    return combinations


def _check_declared(override: Override, composed: Callable[[int], DictConfig], number: int) -> None:
    """Refuse an option that the program has with none of the choices that are made.

    Args:
        override: the option.
        composed: returns the configuration with the i-th combination of choices; 0 is the first choice of each group.
        number: number of these configurations.

    Raises:
        ConfigError: the option is unknown, with the nearest names; it is added with + and exists; or it is removed with
            ~ and the program needs it.
    """
    name, text = override.key_or_group, str(override.input_line)
    parent = name.rpartition(".")[0]
    if override.is_add() and number == 1 and name in _sibling_options(name, composed(0)):
        raise ConfigError(f"{text}: {name} is an option already, which is written without +")
    adds = override.is_add() or override.is_force_add()
    siblings = list[str]()
    for i in range(number):
        siblings_here = _sibling_options(name, composed(i))
        if name in siblings_here or (adds and _is_checked_elsewhere(parent, composed(i))):
            break
        siblings += [option for option in siblings_here if option not in siblings]
    else:
        if not siblings:
            raise ConfigError(f"option {name} is unknown: {parent} has no options of its own")
        keys = [option.rpartition(".")[2] for option in siblings]
        raise ConfigError(f"option {name} is unknown{near(name.rpartition('.')[2], keys)}")
    if override.is_delete() and not _is_checked_elsewhere(parent, composed(0)):
        raise ConfigError(f"{text}: the program needs {name}, which cannot be removed")


def _sibling_options(name: str, config: DictConfig) -> list[str]:
    """Return the dotted names of all options in the same part of a configuration as the option `name`."""
    parent = name.rpartition(".")[0]
    node = _select(config, parent)
    if isinstance(node, ListConfig):
        return [name]  # an index into a list, which Hydra itself checks
    names = [str(option) for option in node] if isinstance(node, DictConfig) else []
    return [f"{parent}.{option}" if parent else option for option in names if parent or option != "hydra"]


def _is_checked_elsewhere(name: str, config: DictConfig) -> bool:
    """Return whether somebody else checks the keys below a part of the configuration.

    This is so if the part, or a part around it, is given to the class or function in its `_target_`, or belongs to
    Hydra and has no dataclass.
    """
    while name:
        node = _select(config, name)
        if isinstance(node, DictConfig) and ("_target_" in node or (name.startswith("hydra.") and not _is_typed(node))):
            return True
        name = name.rpartition(".")[0]
    return False


def _is_typed(node: DictConfig) -> bool:
    return is_dataclass(OmegaConf.get_type(node))


def _select(config: DictConfig, name: str) -> object:
    """Return the part of a configuration with a dotted name ("": all of it); None if it is absent or not readable."""
    with contextlib.suppress(OmegaConfBaseException):
        return OmegaConf.select(config, name) if name else config
    return None
