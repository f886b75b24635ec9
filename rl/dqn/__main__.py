"""The entry point of `python -m rl.dqn`; the program is in `rl.dqn.train`."""

from harness.program.start import run_program
from rl.dqn.train import main

if __name__ == "__main__":
    run_program(main, "dqn")
