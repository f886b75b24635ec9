"""`python -m fire_core.audit`."""

import sys

from fire_core.tools.audit import main

if __name__ == "__main__":
    sys.exit(main())
