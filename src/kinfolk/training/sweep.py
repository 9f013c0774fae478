"""The settings and seeds of a figure as one compiled program.

>>> from kinfolk import Experiment, Phase, none
>>> from kinfolk.data.sets.synthetic import synthetic_schools
>>> experiment = Experiment(seed=0, seeds=2, privacy=none(), phases=(Phase("mean_regularized", rounds=3),))
>>> data = [synthetic_schools(clients=4, least=8, most=9, seed=seed) for seed in range(2)]
>>> figure = sweep(experiment, {"strength": (0.1, 1.0, 10.0)}, data=data)
>>> states = figure.rounds(figure.init(seeds=range(2)), 0, 3)
>>> figure.errors(states)["error"].shape  # points, seeds, clients
(3, 2, 4)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from kinfolk import limits
from kinfolk.algorithms.registry import resolve
from kinfolk.engines.loop import Sweep, points
from kinfolk.toml import ConfigError
from kinfolk.training.build import as_sweep
from kinfolk.training.experiment import Experiment
from kinfolk.training.inputs import GivenData
from kinfolk.training.prepare import Job, prepare
from kinfolk.types import Algorithm, Model


def sweep(
    experiment: Experiment,
    over: Mapping[str, Sequence[float]] | None = None,
    *,
    data: GivenData | None = None,
    model: Model | None = None,
) -> Sweep:
    """A simulation of every point and seed at once, made ready like a run: counted, calibrated, checked.

    `experiment`: one phase, and a seed; its `seeds` says how many federations there are. `over`: options of its method
    that are numbers, each with a value for every point, and all as long; None: one point. `data`: the federations, one
    for each seed, where the experiment does not name them. `model`: one of one's own. Points share their seeds' noise,
    so the set as a whole has no epsilon: this is for simulations.
    """
    if experiment.seed is None or len(experiment.phases) != 1:
        raise ConfigError(
            f"seed={experiment.seed} and phases={len(experiment.phases)}: a sweep is a simulation of one phase; give "
            "the experiment a seed and one phase"
        )
    job = prepare(experiment, data, model)
    job.require_checked()
    return sweep_of(job, over)


def sweep_of(job: Job, over: Mapping[str, Sequence[float]] | None = None) -> Sweep:
    """The sweep of a `job` that is ready, `over` these numbers of its first method."""
    method, _ = resolve(job.experiment.phases[0].method, job.experiment.phases[0].options)
    settings = _points(method, job.algorithms[0], over or {})
    plan = dataclasses.replace(job.plan, little_work=False)  # of one point it may be
    return Sweep(plan, points(settings), as_sweep(job.terms, len(settings)), job.clients, job.tests)


def _points(method: str, algorithm: Algorithm, over: Mapping[str, Sequence[float]]) -> list[Algorithm]:
    assert dataclasses.is_dataclass(algorithm)
    lengths = {name: len(values) for name, values in over.items()}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise ConfigError(f"over={lengths} values: every option needs one for every point")
    for name, values in over.items():
        if not limits.is_number(getattr(algorithm, name, None)):
            raise ConfigError(f"over={name!r} is not a number of {method}: make a sweep of its own for each value")
        for value in values:
            limits.checked(name, value, method)
    count = next(iter(lengths.values()), 1)
    columns = [{name: values[point] for name, values in over.items()} for point in range(count)]
    return [dataclasses.replace(algorithm, **numbers) for numbers in columns]
