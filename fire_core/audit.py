"""The entry point of `python -m fire_core.audit`; the tool is in `fire_core.tools.audit`."""

import sys

from fire_core.tools.audit import main
from fire_core.tools.output import keep_output

if __name__ == "__main__":
    keep_output()
    sys.exit(main())
