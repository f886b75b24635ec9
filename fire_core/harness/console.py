"""Log lines that do not break a progress bar."""

import logging
import sys

from tqdm import tqdm


class TqdmHandler(logging.Handler):
    """Writes records to stderr above the progress bar, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)
