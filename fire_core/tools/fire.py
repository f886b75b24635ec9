"""The command `fire`: looks into models and checkpoints, and projects them.

fire matrices PATH       which matrices the weights hold
fire audit PATH          which of them have drifted from isometry
fire project IN OUT      a projected copy of a checkpoint
fire convergence         how near each solver comes to the isometry, measured
"""

import importlib
import sys

from fire_core.tools.output import keep_output, system_errors_explained

COMMANDS = ("matrices", "audit", "project", "convergence")


def main(arguments: list[str] | None = None) -> int:
    """Run the tool that the first word names with the other words, and return its exit code."""
    keep_output()
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    if words[0] not in COMMANDS:
        print(f"fire {words[0]} is unknown: one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    with system_errors_explained():
        code: int = importlib.import_module(f"fire_core.tools.{words[0]}").main(words[1:])
        sys.stdout.flush()
    return code
