"""The programs' runner, for tests of run folders."""

from tests.harness.conftest import zygote

__all__ = ["zygote"]
