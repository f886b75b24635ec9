"""The launcher behind `hydra/launcher=cores`: the jobs of a sweep side by side on this machine.

It lies in a folder of its own beside `harness/`, as Hydra takes launchers from the namespace `hydra_plugins` alone: it
refuses a `_target_` of any other name ("Invalid plugin"), also of a class that was registered by hand.

One job that is killed costs that job: it is a line of the sweep's table, and the others go on. Where the driver is
stopped or killed the jobs write checkpoints and leave with it (`harness.process.workers`).
"""

import atexit
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class CoresLauncher(Launcher):
    """Runs the jobs of a sweep in processes of this machine.

    Args:
        n_jobs: number of jobs at once; -1: as many as this process has cores, -2: one fewer, and so on.
    """

    def __init__(self, n_jobs: int = -1) -> None:
        self.n_jobs = n_jobs
        self.workers: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run jobs and return how each ended, in their order.

        Raises:
            ConfigError: `n_jobs` is no number of processes.
            SystemExit: a job was stopped by a signal; the others that had begun have ended too.
        """
        # Here, as Hydra imports all plugins at each start of a program.
        from harness.config.errors import TrainingError
        from harness.process.signals import EXIT_PREEMPTED
        from harness.process.workers import Lost, Workers, number_of_workers
        from harness.program.outcome import Outcome, record_outcome

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        if self.workers is None:  # a sweeper launches again and again
            number, threads = number_of_workers("hydra.launcher.n_jobs", self.n_jobs)
            self.workers = Workers(number, threads, imports_main=False)  # `shared` holds what it needs of it
            atexit.register(self.workers.close)
        shared = cloudpickle.dumps((self.hydra_context, self.config, self.task_function, Singleton.get_state()))
        calls = [(initial_job_idx + i, tuple(overrides), shared) for i, overrides in enumerate(job_overrides)]
        ended: dict[int, JobReturn] = {}
        stopped = False
        for (number, overrides, _), answer in self.workers.map(run_one, calls):
            if isinstance(answer, Lost) and answer.code != EXIT_PREEMPTED:
                record_outcome(number, Outcome(" ".join(filter_overrides(overrides)), "failed", str(answer)))
                ended[number] = JobReturn(overrides=overrides, status=JobStatus.FAILED)
                ended[number].return_value = TrainingError(f"{' '.join(filter_overrides(overrides))}: {answer}")
            elif answer is None or isinstance(answer, Lost):
                stopped = True
            else:
                ended[number] = pickle.loads(answer)
        if stopped:
            raise SystemExit(EXIT_PREEMPTED)
        return [ended[number] for number, *_ in calls]


def run_one(call: tuple[int, tuple[str, ...], bytes]) -> bytes | None:
    """Run one job in a worker process; return its pickled `JobReturn`, or None if a signal stopped it."""
    number, overrides, shared = call
    hydra_context, config, task_function, singletons = cloudpickle.loads(shared)
    setup_globals()
    Singleton.set_state(singletons)
    job_config = hydra_context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(job_config):
        job_config.hydra.job.id = f"{job_config.hydra.job.name}_{number}"
        job_config.hydra.job.num = number
    HydraConfig.instance().set_config(job_config)
    try:
        ended = run_job(
            hydra_context=hydra_context,
            config=job_config,
            task_function=task_function,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    except (SystemExit, KeyboardInterrupt):
        return None
    try:
        data = cloudpickle.dumps(ended)
        pickle.loads(data)
    except Exception:  # an exception whose class cannot be made again elsewhere
        ended.return_value = RuntimeError(f"{type(ended._return_value).__name__}: {ended._return_value}")
        data = cloudpickle.dumps(ended)
    return data
