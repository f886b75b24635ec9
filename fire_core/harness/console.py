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


def show_log() -> None:
    """Show what the project logs, from INFO on, in this process (once, however often it is called)."""
    for name in ("fire_core", "vision", "language", "rl", "__main__"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, TqdmHandler) for handler in logger.handlers):
            handler = TqdmHandler()
            handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%H:%M:%S"))
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
