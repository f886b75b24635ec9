"""Where `fire_core.runs` went: the library knows nothing of run folders."""

import sys

if __name__ == "__main__":
    sys.exit("error: this command is `python -m harness.runs` now")
