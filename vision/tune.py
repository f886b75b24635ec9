"""`python -m vision.tune method=fire`: the search of `python -m harness.tune program=vision`."""

import sys

from fire_core.tools.output import keep_output
from harness.tune.command import main

if __name__ == "__main__":
    keep_output()
    sys.exit(main(["program=vision", *sys.argv[1:]]))
