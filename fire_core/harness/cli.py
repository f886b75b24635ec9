"""How a program starts: one clear line for what the user can mend, a traceback only when asked for."""

import difflib
import logging
import os
import re
import sys
from collections.abc import Callable

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fire_core.harness.errors import ConfigError, TrainingError

EXIT_CONFIG, EXIT_TRAINING = 2, 3
USER_ERRORS = (ConfigError, TrainingError, HydraException, OmegaConfBaseException)


def run_program(main: Callable[[], None]) -> None:
    """Call a `@hydra.main` function; print errors of the user's making as one line and exit with their code.

    `HYDRA_FULL_ERROR=1` in the environment shows the traceback.
    """
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        main()
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, rather than print and exit by itself
    logging.getLogger("hydra.core.utils").addFilter(lambda record: "Error executing job" not in record.getMessage())
    try:
        main()
    except USER_ERRORS as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        raise SystemExit(EXIT_TRAINING if isinstance(error, TrainingError) else EXIT_CONFIG) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        del os.environ["HYDRA_FULL_ERROR"]


def one_line(error: BaseException) -> str:
    """An error's message, and that of the error underneath when it says more, on one line with a near match."""
    parts = [str(error)]
    if isinstance(error, HydraException) and error.__cause__ is not None:
        parts.append(str(error.__cause__))
    text = " ".join(" ".join(parts).split())
    text = re.sub(r"(full_key|object_type|reference_type)=[^ ]*", "", text)
    text = re.sub(r"[Ss]et the environment variable HYDRA_FULL_ERROR=1.*", "", text).strip()
    missing = re.search(r"Could not find '(?:.*/)?([^/']+)'.*Available options in '([^']+)': (.*)", text)
    if missing:
        name, group, options = missing[1], missing[2], missing[3].split()
        near = difflib.get_close_matches(name, options, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"{group}={name} is unknown{hint}; accepted: {', '.join(options)}"
    return text
