"""Numbers of a run while it trains, in the tools that people watch: TensorBoard and MLflow (extra `tracking`).

What a simulation measures is logged as it is. A release logs its epsilon alone: what
it measures on data is private, and no ledger covers a copy of it elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from kinfolk.toml import ConfigError
from kinfolk.training.experiment import Experiment

Write = Callable[[dict[str, float], int], object]
"""Writes numbers after so many rounds."""
TRACKERS = ("tensorboard", "mlflow")


@contextmanager
def tracking(
    names: Sequence[str], experiment: Experiment, folder: Path
) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """A function that logs numbers after a round to these trackers. TensorBoard's files go into the run's `folder`."""
    with ExitStack() as stack:
        logs = [stack.enter_context(_open(name, experiment, folder)) for name in names]

        def log(done: int, numbers: dict[str, float]) -> None:
            shown = {"epsilon": numbers["epsilon"]} if "epsilon" in numbers else {}
            for write in logs:
                write(shown if experiment.seed is None else numbers, done)

        yield log


def check(names: Sequence[str]) -> None:
    """Before anything is charged: these trackers exist, and are installed."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"track={name!r} is not one of {', '.join(TRACKERS)}")
        try:
            __import__({"tensorboard": "tensorboardX", "mlflow": "mlflow"}[name])
        except ImportError as problem:
            raise ConfigError(f"track={name!r} needs an extra: pip install 'kinfolk[tracking]'") from problem


def _open(name: str, experiment: Experiment, folder: Path) -> AbstractContextManager[Write]:
    return {"tensorboard": _tensorboard, "mlflow": _mlflow}[name](experiment, folder)


@contextmanager
def _tensorboard(experiment: Experiment, folder: Path) -> Iterator[Write]:
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def write(numbers: dict[str, float], done: int) -> None:
            for key, value in numbers.items():
                writer.add_scalar(key, value, done)
            writer.flush()

        yield write


@contextmanager
def _mlflow(experiment: Experiment, folder: Path) -> Iterator[Write]:
    """Where to is MLflow's own setting (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""
    import mlflow

    level = experiment.privacy
    settings = {
        "data": experiment.data.name,
        "methods": ", ".join(phase.method for phase in experiment.phases),
        "rounds": experiment.rounds,
        "level": level.level,
        "budget": level.epsilon,
        "mode": "release" if experiment.seed is None else f"simulation, seed {experiment.seed}",
    }
    with mlflow.start_run(run_name=folder.parent.name):
        mlflow.log_params(settings)
        yield lambda numbers, done: mlflow.log_metrics(
            {_plain(key): value for key, value in numbers.items()}, step=done
        )


def _plain(name: str) -> str:
    """A metric's name and unit without what MLflow does not take."""
    return re.sub(r"[^\w .:/-]", "", name)
