"""The entry point of `python -m fire_core.project`; the tool is in `fire_core.tools.project`."""

import sys

from fire_core.tools.output import keep_output
from fire_core.tools.project import main

if __name__ == "__main__":
    keep_output()
    sys.exit(main())
