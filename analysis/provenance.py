"""The provenance of tables that are made from runs."""

from collections.abc import Sequence

from analysis.runs import Run, from_config
from harness.run import provenance


def entry_of(runs: Sequence[Run]) -> provenance.Entry:
    """Return the common provenance entry of runs, from their identities and environments."""
    entries = []
    for run in runs:
        identity = run.identity or from_config(run.config)
        for environment in provenance.environments_of_rows(run.environment):
            entries.append(provenance.of_run(identity, environment, run.execution.get("device", "cpu")))
    return provenance.joined(entries)
