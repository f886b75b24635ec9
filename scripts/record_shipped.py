"""Record the source files that a `_target_` of `conf/` names, as this version ships them.

python -m scripts.record_shipped      writes harness/run/shipped.json

A file that differs from what is recorded is taken for code of the user's own, and its runs have another name. So run
this after a change of such a file that moves no number; a change that moves numbers raises NUMERICS as well.
"""

import json
import re
from pathlib import Path

from fire_core.tools.output import keep_output
from harness.run.own_code import ROOT, SHIPPED, digest_of_code, source_of


def main() -> None:
    """Write the digests of the files that are shipped."""
    SHIPPED.write_text(json.dumps(digests_of_targets(), indent=1) + "\n", encoding="utf-8")


def digests_of_targets() -> dict[str, str]:
    """Return path below the root -> digest of each file of this project that a `_target_` of `conf/` names."""
    targets = set()
    for file in (ROOT / "conf").rglob("*.yaml"):
        targets.update(re.findall(r"_target_: *([\w.]+)", file.read_text(encoding="utf-8")))
    sources = {source for target in targets if (source := source_of(target)) is not None}
    files = sorted(source for source in sources if is_of_this_project(source))
    return {file.relative_to(ROOT).as_posix(): digest_of_code(file) for file in files}


def is_of_this_project(source: Path) -> bool:
    """Return whether a file lies in this tree, and not in an environment of Python within it."""
    return source.is_relative_to(ROOT) and "site-packages" not in source.parts


if __name__ == "__main__":
    keep_output()
    main()
