"""`python -m fire_core.convergence`."""

import sys

from fire_core.tools.convergence import main

if __name__ == "__main__":
    sys.exit(main())
