"""TensorBoard's event files beside `metrics.jsonl`: `pip install tensorboard`, then `tracker=tensorboard`."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from harness.config.errors import ConfigError
from harness.run.tracker import Tracker

log = logging.getLogger(__name__)


class TensorBoard(Tracker):
    """Writes each number of a row as a scalar at the row's step, into the run folder's `tensorboard`.

    A resumed run writes its rows anew, so that none stands twice.

    Raises:
        ConfigError: the package tensorboard is not installed.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("tracker=tensorboard needs: pip install tensorboard") from error
        self._make: Any = SummaryWriter
        self._writer: Any = None

    def start(self, folder: Path, config: dict[str, Any]) -> None:
        place, rows = folder / "tensorboard", folder / "metrics.jsonl"
        shutil.rmtree(place, ignore_errors=True)
        try:
            self._writer = self._make(place)
        except OSError as error:
            log.warning("tensorboard cannot write (%s): training continues, metrics.jsonl is complete", error)
        for line in rows.read_text().splitlines() if rows.exists() else ():
            self.log(json.loads(line))

    def log(self, row: dict[str, Any]) -> None:
        try:
            for key, value in row.items() if self._writer else ():
                if isinstance(value, (int, float)) and key != "step":
                    self._writer.add_scalar(key, value, row["step"])
        except OSError as error:
            log.warning("tensorboard stopped (%s): training continues, metrics.jsonl is complete", error)
            self._writer = None

    def finish(self) -> None:
        if self._writer:
            self._writer.close()
        self._writer = None
