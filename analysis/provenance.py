"""The provenance of tables that are made from runs."""

from collections.abc import Sequence

from analysis.runs import Run, from_config
from harness.run import provenance


def entry_of(runs: Sequence[Run]) -> provenance.Entry:
    """The common entry of runs, from their identities and environments."""
    return provenance.joined(
        [
            provenance.of_run(run.identity or from_config(run.config), environment)
            for run in runs
            for environment in provenance.environments_of_rows(run.environment)
        ]
    )
