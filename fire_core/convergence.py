"""The entry point of `python -m fire_core.convergence`; the tool is in `fire_core.tools.convergence`."""

import sys

from fire_core.tools.convergence import main
from fire_core.tools.output import keep_output

if __name__ == "__main__":
    keep_output()
    sys.exit(main())
