"""`python -m fire_core.runs`."""

import sys

from fire_core.tools.runs import main

if __name__ == "__main__":
    sys.exit(main())
