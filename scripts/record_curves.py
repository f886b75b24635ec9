"""Record the numbers that `tests/curves` compares with: rows of short runs of all four programs.

    python scripts/record_curves.py                    all programs, about a minute
    python scripts/record_curves.py vision dqn         these
    python scripts/record_curves.py --check            compares, records nothing

A changed number is recorded only if the program's NUMERICS was raised. It is part of the identity of every run and of
every cached first phase, so no cache and no finished run with the old numbers is used for the new ones. New columns and
new cases are recorded at any time.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from fire_core.tools.output import keep_output
from harness.run import NUMERICS
from tests.curves import series
from tests.curves.cases import CASES


def main() -> None:
    """Record the curves of the named programs, or exit with the reason why they are not recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(CASES))
    parser.add_argument("--check", action="store_true", help="compare only")
    arguments = parser.parse_args()
    history = series.history()
    if unknown := set(arguments.programs) - set(CASES):
        parser.error(f"unknown: {', '.join(unknown)}; programs are {', '.join(CASES)}")
    for program in arguments.programs or CASES:
        recorded_under = history.setdefault(program, {})
        numerics, place = str(NUMERICS[program]), series.environment(program)
        with tempfile.TemporaryDirectory() as folder:
            curves = series.run_cases(program, CASES[program], Path(folder))
        if (series.FOLDER / f"{program}.json").exists():
            recorded_at, recorded = series.read(program)
            changed = series.differences(program, recorded, curves, exact=recorded_at == place)
            print(*changed, f"{program}: {len(changed)} numbers differ", sep="\n")
            if changed and numerics in recorded_under and not arguments.check:
                raise SystemExit(f"numbers changed, and NUMERICS is still {numerics}: raise it, then record again")
            if changed and arguments.check:
                raise SystemExit(1)
        if not arguments.check:
            series.write(program, curves)
            recorded_under.setdefault(numerics, {})[place] = series.digest(program)
            series.HISTORY.write_text(json.dumps(history, indent=1) + "\n")
            print(f"{program}: {len(curves)} runs recorded")


if __name__ == "__main__":
    keep_output()
    main()
