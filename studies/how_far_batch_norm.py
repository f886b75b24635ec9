"""Measure what the acts on warm_start keep when batch norm's statistics are estimated anew after them.

The study's own numbers right after an act are taken with the running statistics of the old weights, which acts leave
as they are. Here each act is taken on the networks with which the first phase ends, and the accuracy on the test images
is measured twice: as in the study, and after one pass over the phase's training images that renews the statistics.

python -m vision.train <options of warm_start> method=base only_first_phase=true seed=201,...,210 -m
python -m studies.how_far_batch_norm runs/.cache    writes warm_start.batch_norm.csv from the runs in that folder
"""

import copy
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from torch.optim.swa_utils import update_bn

from fire_core import fire_
from fire_core.tools.output import keep_output
from harness import load
from harness.run import provenance
from harness.trained.load import Trained
from studies.driver import ROOT
from studies.how_far import STREAMS
from studies.tables import Row, write_csv
from vision.phase import batches

ACTS = {"base": 0.0, "half": 0.5, "fire": 1.0}  # how far each goes to the isometry
TABLE = ROOT / "docs" / "studies" / "how_far" / "warm_start.batch_norm.csv"


def main(arguments: Sequence[str]) -> None:
    """Write the table from the first phases that lie in a folder.

    Raises:
        SystemExit: no folder is named, or the first phase of a report seed is missing or there twice.
    """
    if len(arguments) != 1:
        sys.exit("error: name the folder that holds the first phases of warm_start")
    lines: list[Row] = []
    used: list[Path] = []
    for seed in STREAMS["warm_start"].report_seeds("base"):
        found = [done.parent for done in Path(arguments[0]).glob(f"vision-warm_start-*-s{seed}-*/DONE")]
        if len(found) != 1:
            sys.exit(f"error: {arguments[0]} holds {len(found)} first phases of warm_start with seed {seed}, not one")
        used += found
        trained = load(found[0])
        lines += [{"row": row, "seed": seed} | measured(trained, blend) for row, blend in ACTS.items()]
    write_csv(TABLE, lines)
    command = "python -m studies.how_far_batch_norm FIRST_PHASES"
    provenance.write(TABLE, provenance.of_folders(used) | {"command": command})


def measured(trained: Trained, blend: float) -> Row:
    """Act on the network of a first phase, and return its accuracy on the test images.

    Args:
        trained: the first phase; its network is afterwards as it was.
        blend: how far the act goes; 0 is no act.

    Returns:
        `before` the act, right `after` it, and with `new_statistics` of batch norm.
    """
    weights = copy.deepcopy(trained.model.state_dict())
    before = trained.evaluate()["test/accuracy"]
    if blend:
        fire_(trained.model, blend=blend)
    after = trained.evaluate()["test/accuracy"]
    one_pass = trained.task.phases[0].steps_per_pass(trained.task.config.batch_size)
    update_bn((images for images, _ in itertools.islice(batches(trained.task, 0), one_pass)), trained.model)
    renewed = trained.evaluate()["test/accuracy"]
    trained.model.load_state_dict(weights)
    return {"before": before, "after": after, "new_statistics": renewed}


if __name__ == "__main__":
    keep_output()
    main(sys.argv[1:])
