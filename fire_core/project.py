"""`python -m fire_core.project`."""

import sys

from fire_core.tools.project import main

if __name__ == "__main__":
    sys.exit(main())
