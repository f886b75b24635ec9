"""What a study consists of: streams with their rows, the number that is compared, and the points of a search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from studies.verdict import Test

STEP = 1.4  # factor from one learning rate of a search to the next
SEARCH_SEEDS = (20_000, 20_001)
Options = tuple[str, ...]


@dataclass(frozen=True)
class Measure:
    """The number by which a stream's rows are compared.

    Attributes:
        name: name of the number in a run's summary.
        smallest: the smallest difference that matters; None: a tenth of fresh minus base.
        sign: 1 if more is better, -1 if less is.
        kept: name of a number of the old task that is measured before and after each act, in the boundary rows
            (`boundary/<kept>_before` and `_after`).
        beside: name of a second number of the summary, which tables show beside the measure; None: there is none.
    """

    name: str
    smallest: float | None
    sign: int
    kept: str
    beside: str | None = None


@dataclass(frozen=True)
class Stream:
    """Rows (methods with options) that are compared on the same seeds, in one or several settings.

    Attributes:
        program: the program that trains: vision, language, dqn or sac.
        options: options of every run.
        rows: name of a row -> its options.
        seeds: name of a row -> its report seeds; `*` has those of all other rows.
        family: tested pairs (row, rival); a positive difference is better for the first.
        measure: the number that is compared.
        test: t, or permutation if returns have two peaks.
        settings: name -> options; the family has each pair in each setting.
        rates: learning rates that each row is searched over; empty: there is no search, and rows have the program's.
        full: options that give runs the report's length.
        prefix: options that give runs the search's length, in place of `full`.
        confirmed_rows: rows whose winner of the search is compared with its two neighbours at the report's length.
        coefficients: name of a row -> sets of options that are searched, each at every rate.
        known_spread: standard deviation of paired differences in an earlier study, if there is no search.
    """

    program: str
    options: Options
    rows: Mapping[str, Options]
    seeds: Mapping[str, Sequence[int]]
    family: Sequence[tuple[str, str]]
    measure: Measure
    test: Test = "t"
    settings: Mapping[str, Options] = field(default_factory=lambda: {"": ()})
    rates: tuple[float, ...] = ()
    full: Options = ()
    prefix: Options = ()
    confirmed_rows: Sequence[str] = ()
    coefficients: Mapping[str, Sequence[Options]] = field(default_factory=dict)
    known_spread: float | None = None

    def report_seeds(self, row: str) -> Sequence[int]:
        """Return the report seeds of a row."""
        return self.seeds.get(row, self.seeds["*"])

    def points(self, row: str) -> list["Point"]:
        """Return the points with which a row's search begins."""
        return [Point(rate, options) for options in self.coefficients.get(row, [()]) for rate in self.rates]


@dataclass(frozen=True)
class Point:
    """A point of a search: a learning rate, and a row's own coefficients."""

    rate: float
    coefficients: Options = ()

    @property
    def options(self) -> Options:
        """The point as options of the command line."""
        return (f"lr={self.rate:.3g}", *self.coefficients)

    def at(self, factor: float) -> "Point":
        """Return the same coefficients at `factor` times the rate, rounded to three digits as on the command line."""
        return replace(self, rate=float(f"{self.rate * factor:.3g}"))
