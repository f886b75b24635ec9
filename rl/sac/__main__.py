"""The entry point of `python -m rl.sac`; the program is in `rl.sac.train`."""

from harness.program.start import run_program
from rl.sac.task import open_environment
from rl.sac.train import main

if __name__ == "__main__":
    run_program(main, "sac", open_environment)
