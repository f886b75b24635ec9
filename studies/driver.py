"""Run a study, or continue it: a search if it has one, then the runs on the report seeds.

    python -m studies.driver how_far queue workers=1     every stream in its frozen order, searched and reported
    python -m studies.driver how_far search labels       the search of one stream alone
    python -m studies.driver how_far report labels       its report seeds; the search must have ended
    python -m studies.driver how_far status              what is done, and how long it took
    python -m studies.driver how_far smoke               each row once at scale=smoke; writes nothing but run folders
    python -m studies.driver pause | resume              stop the processes of a queue on this machine, let them go on

`queue` commits the tables to the current branch: what a search chose before its report begins, and the rows.

A study is data: a module `studies/<name>.py` with `STREAMS`. Tables are in docs/studies/<name>/ and are written after
each run; a run that has a line in them is not repeated. An unfinished run resumes from runs/studies/<name>/<CPU>, so
that no run begins on one kind of CPU and ends on another.

    <stream>.search.csv   a line for each run of the search
    <stream>.chosen.csv   what each row's search chose, written before the first report seed runs
    <stream>.power.json   the spread on the search's seeds, and with it the power of the report
    <stream>.csv          a line for each report run
    <stream>.tasks.csv    of each report run, a line for each task, or for fifty tasks where there are more
"""

import importlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fire_core.tools.output import keep_output
from harness.config.groups import CONF
from harness.program.jobs import Job, run_jobs
from harness.run.environment import environment
from harness.run.files import write_atomically
from studies.search import best_point, next_rate, power_of, score_of, searched_power
from studies.streams import SEARCH_SEEDS, STEP, Point, Stream
from studies.tables import Key, Row, Table, read_csv, write_derived
from studies.verdict import smallest_that_matters

ROOT = CONF.parent
PROCESS_GROUP = Path("runs/studies/queue.pid")
QUIET = ("tracker=none", "progress=false", "threads=1", "checkpoint.keep=1", "device=cpu", "precision=float32")


def main(arguments: Sequence[str]) -> None:
    """Parse the command line and run its command."""
    if list(arguments) in (["pause"], ["resume"]):
        signal_queue(signal.SIGSTOP if arguments[0] == "pause" else signal.SIGCONT)
        return
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if "\nSTREAMS = " in path.read_text())
    words = [word for word in arguments if "=" not in word]
    options = dict(word.split("=", 1) for word in arguments if "=" in word)
    if len(words) < 2 or words[0] not in known or options.keys() - {"workers"}:
        sys.exit(f"error: expected STUDY queue|search|report|status|smoke [STREAM] [workers=N]; studies: {known}")
    study = Study(words[0], int(options.get("workers", 1)))
    names = words[2:] or list(study.streams)
    if unknown := [name for name in names if name not in study.streams]:
        sys.exit(f"error: no stream {', '.join(unknown)} in {words[0]}; it has {', '.join(study.streams)}")
    match words[1]:
        case "queue":
            study.queue(names)
        case "search":
            for name in names:
                study.search(name)
        case "report":
            for name in names:
                study.report(name)
        case "status":
            for name in names:
                print(study.status(name))
        case "smoke":
            for name in names:
                study.smoke(name)
        case other:
            sys.exit(f"error: {other} is no command: queue, search, report, status or smoke")


class Study:
    """A study: its streams, its tables, and the commands that continue it.

    Args:
        name: name of the module in `studies`.
        workers: number of runs at once.
        folder: folder of its tables; None: docs/studies/<name>.
    """

    def __init__(self, name: str, workers: int, folder: Path | None = None) -> None:
        self.name, self.workers = name, workers
        self.streams: dict[str, Stream] = importlib.import_module(f"studies.{name}").STREAMS
        self.folder = folder or ROOT / "docs" / "studies" / name
        cpu = re.sub(r"[^A-Za-z0-9]+", "_", environment()["processor"]).strip("_")
        self.runs = f"runs/studies/{name}/{cpu}"

    def queue(self, names: Sequence[str]) -> None:
        """Search and report each stream; a search's choices are committed before the first report seed runs."""
        if os.getsid(0) != os.getpid():  # the leader of a session has a process group of its own already
            os.setpgid(0, 0)
        PROCESS_GROUP.parent.mkdir(parents=True, exist_ok=True)
        PROCESS_GROUP.write_text(str(os.getpgid(0)))
        for name in names:
            self.search(name)
            commit(self.tables(name), f"{self.name}: what the search of {name} chose")
            self.report(name)
            commit(self.tables(name), f"{self.name}: the rows of {name}")

    def tables(self, name: str) -> list[Path]:
        """Return the files of a stream that exist."""
        return sorted(self.folder.glob(f"{name}.*"))

    def search(self, name: str) -> None:
        """Search every row of a stream, and write the chosen points and the power of the report.

        Once the report has begun, these two files are left alone, unless rows or comparisons were added to the study.
        """
        stream = self.streams[name]
        if not stream.rates:
            assert stream.known_spread is not None, "a stream without a search takes its spread from an earlier study"
            smallest = smallest_that_matters(stream.measure.smallest, math.nan)
            if not self.is_frozen(name, []):
                self.write_power(name, power_of(stream, smallest, stream.known_spread))
            return
        table = Table(self.folder / f"{name}.search.csv", self.command("search", name))
        chosen: dict[tuple[str, str], Point] = {}
        for setting in stream.settings:
            points = self.search_points(
                stream, table, setting, {row: stream.points(row) for row in stream.rows}, "prefix"
            )
            around = {
                row: [points[row].at(1 / STEP), points[row], points[row].at(STEP)] for row in stream.confirmed_rows
            }
            points |= self.search_points(stream, table, setting, around, "full")
            chosen |= {(setting, row): point for row, point in points.items()}
        scores = {}
        for (setting, row), point in chosen.items():
            length = "full" if row in stream.confirmed_rows else "prefix"
            keys = [Key(setting, row, " ".join(point.options), length, seed) for seed in SEARCH_SEEDS]
            scores[setting, row] = [score_of(table, stream, key) for key in keys]
        lines = [
            {
                "setting": setting,
                "row": row,
                "searched": " ".join(point.options),
                "score": statistics.fmean(scores[setting, row]),
            }
            for (setting, row), point in chosen.items()
        ]
        if self.is_frozen(name, lines):
            return
        write_derived(self.folder / f"{name}.chosen.csv", lines, [table.path], self.command("search", name))
        self.write_power(name, searched_power(stream, scores))

    def is_frozen(self, name: str, lines: Sequence[Row]) -> bool:
        """Return whether a stream's report has begun and the choices and power on disk hold every row and comparison.

        If some were added since, both files are to be written again, with the earlier choices unchanged.

        Args:
            name: name of the stream.
            lines: what the search chooses now, as lines of `<stream>.chosen.csv`.

        Raises:
            SystemExit: the report has begun with another choice.
        """
        power_file = self.folder / f"{name}.power.json"
        if not (self.folder / f"{name}.csv").exists() or not power_file.exists():
            return False
        frozen = {
            (line["setting"], line["row"]): line["searched"] for line in read_csv(self.folder / f"{name}.chosen.csv")
        }
        chosen = {(line["setting"], line["row"]): line["searched"] for line in lines}
        for (setting, row), searched in chosen.items():
            if frozen.get((setting, row), searched) != searched:
                sys.exit(
                    f"error: the search of {name} now chooses {searched} for {f'{setting} {row}'.strip()}, but its "
                    f"report has begun with {frozen[setting, row]}; to begin anew, move {name}.csv away"
                )
        pairs = {(pair["row"], pair["rival"]) for pair in json.loads(power_file.read_text())["pairs"]}
        return frozen.keys() >= chosen.keys() and pairs >= {*self.streams[name].family}

    def write_power(self, name: str, numbers: Row) -> None:
        """Write the power of a stream's report beside its tables."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"{name}.power.json", (json.dumps(numbers, indent=1) + "\n").encode())

    def search_points(
        self, stream: Stream, table: Table, setting: str, points: dict[str, list[Point]], length: str
    ) -> dict[str, Point]:
        """Run the points of a search on its seeds, unless the table has them, and return the best one of each row.

        While the best rate of a row is the lowest or the highest that was tried, the next one beyond it is tried too.
        """
        while True:
            keys = []
            for seed in SEARCH_SEEDS:
                for row, tried in points.items():
                    keys += [Key(setting, row, " ".join(point.options), length, seed) for point in tried]
            self.run(stream, table, keys)
            best = {row: best_point(stream, table, setting, row, tried, length) for row, tried in points.items()}
            beyond = {row: next_rate(points[row], best[row]) for row in points}
            if not any(beyond.values()):
                return best
            points = {row: [*tried, *beyond[row]] for row, tried in points.items()}

    def report(self, name: str) -> None:
        """Run the report seeds: all rows of a seed in succession, and on one kind of CPU.

        Seeds that were begun on another kind of CPU come last, and all their rows are run again here.

        Raises:
            SystemExit: the search has not ended.
        """
        stream = self.streams[name]
        table = Table(self.folder / f"{name}.csv", self.command("report", name), tasks=True)
        searched = self.chosen(name)
        keys = [
            Key(setting, row, searched.get((setting, row), ""), "full", seed)
            for seed in sorted({seed for row in stream.rows for seed in stream.report_seeds(row)})
            for setting in stream.settings
            for row in stream.rows
            if seed in stream.report_seeds(row)
        ]
        here = environment()["processor"]
        by_seed = {seed: [key for key in keys if key.seed == seed] for seed in dict.fromkeys(key.seed for key in keys)}
        foreign = [seed for seed, rows in by_seed.items() if begun_elsewhere(table, rows, here)]
        self.run(stream, table, (key for seed in by_seed if seed not in foreign for key in by_seed[seed]))
        for seed in foreign:
            table.drop(by_seed[seed])
        self.run(stream, table, (key for seed in foreign for key in by_seed[seed]))

    def chosen(self, name: str) -> dict[tuple[str, str], str]:
        """Return the options that a stream's search chose, by (setting, row); empty if it has no search.

        Raises:
            SystemExit: the search has not ended.
        """
        if not self.streams[name].rates:
            return {}
        lines = read_csv(self.folder / f"{name}.chosen.csv")
        if not lines:
            sys.exit(f"error: the search of {name} has not ended: python -m studies.driver {self.name} search {name}")
        return {(line["setting"], line["row"]): line["searched"] for line in lines}

    def run(self, stream: Stream, table: Table, wanted: Iterable[Key]) -> None:
        """Train the wanted runs that are not in the table yet, and add each to it as it ends."""
        keys = {self.job(stream, key): key for key in wanted if key not in table.lines}
        for ended in run_jobs(keys, self.workers):
            line = table.add(keys[ended.job], ended.folder, ended.seconds)
            print(*(f"{name}={line.get(name)}" for name in (*vars(keys[ended.job]), stream.measure.name)), flush=True)

    def job(self, stream: Stream, key: Key, *more: str) -> Job:
        """Return the job that trains a run; `more` are further options."""
        length = stream.full if key.length == "full" else stream.prefix
        return Job(
            stream.program,
            (
                *stream.options,
                *length,
                *stream.settings[key.setting],
                *stream.rows[key.row],
                *key.searched.split(),
                *QUIET,
                f"seed={key.seed}",
                f"paths.runs={self.runs}",
                *more,
            ),
        )

    def smoke(self, name: str) -> None:
        """Run each row once in a few steps, without a table."""
        stream = self.streams[name]
        images = ("dataset=digits",) if stream.program == "vision" else ()
        small = ("scale=smoke", *images, "paths.runs=runs/smoke", "paths.cache=runs/smoke/cache")
        options_without_data = tuple(
            word for word in stream.options if not word.startswith(("dataset", "benchmark.samples="))
        )
        quick = replace(stream, options=options_without_data, full=(), settings={"": ()})
        jobs = {}
        for row in stream.rows:
            searched = " ".join(option for options in stream.coefficients.get(row, [()])[:1] for option in options)
            jobs[self.job(quick, Key("", row, searched, "full", SEARCH_SEEDS[0]), *small)] = row
        for ended in run_jobs(jobs, self.workers):
            print(f"{name} {jobs[ended.job]}: {ended.state}", flush=True)

    def status(self, name: str) -> str:
        """Return a line that says how many runs of a stream are done, and how many core hours they took."""
        stream = self.streams[name]
        rows = sum(len(stream.report_seeds(row)) for row in stream.rows) * len(stream.settings)
        tables = [Table(self.folder / f"{name}{suffix}.csv", "") for suffix in (".search", "")]
        hours = [sum(float(line["cpu_seconds"]) for line in table.lines.values()) / 3600 for table in tables]
        return (
            f"{name}: search {len(tables[0].lines)} runs, {hours[0]:.1f} h; "
            f"report {len(tables[1].lines)} of {rows} runs, {hours[1]:.1f} h"
        )

    def command(self, what: str, name: str) -> str:
        """Return the command that continues a table."""
        return f"python -m studies.driver {self.name} {what} {name}"


def signal_queue(number: signal.Signals) -> None:
    """Send a signal to all processes of the queue that was started in this folder."""
    try:
        os.killpg(int(PROCESS_GROUP.read_text()), number)
    except (FileNotFoundError, ProcessLookupError):
        sys.exit(f"error: no queue runs here ({PROCESS_GROUP} names none)")


def commit(files: Sequence[Path], subject: str) -> None:
    """Commit these files alone, if they have changed."""
    subprocess.run(["git", "add", "--", *files], cwd=ROOT, check=True)
    if subprocess.run(["git", "diff", "--cached", "--quiet", "--", *files], cwd=ROOT).returncode:
        subprocess.run(["git", "commit", "--quiet", "-m", subject, "--", *files], cwd=ROOT, check=True)


def begun_elsewhere(table: Table, keys_of_seed: Sequence[Key], here: str) -> bool:
    """Return whether some but not all runs of a seed are done, and any of them on another kind of CPU than `here`.

    The whole seed then runs again, since its rows are compared with each other.
    """
    cpus = [table.lines[key]["cpu"] for key in keys_of_seed if key in table.lines]
    return 0 < len(cpus) < len(keys_of_seed) and any(cpu != here for cpu in cpus)


if __name__ == "__main__":
    keep_output()
    main(sys.argv[1:])
