"""`python -m harness.tune program=vision method=fire trials=17`."""

import sys

from fire_core.tools.output import keep_output
from harness.tune.command import main

if __name__ == "__main__":
    keep_output()
    sys.exit(main(sys.argv[1:]))
