"""`python -m rl.dqn`."""

from harness.config.cli import run_program
from rl.dqn.train import main

if __name__ == "__main__":
    run_program(main, "dqn")
