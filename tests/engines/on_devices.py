"""Run by tests in processes of their own: the same rounds on one device and on several, or in several processes.

python -m tests.engines.on_devices            # 8 devices on one CPU
python -m tests.engines.on_devices asked      # 2 devices, asked for by the experiment
python -m tests.engines.on_devices 2 0 PORT   # the first of 2 processes
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

ROUNDS = 3
CLIENTS = 61
"""Of those who live on devices: none of 2 and 8 divides them."""
SEVERAL = "--xla_force_host_platform_device_count=8"


def simulated(level: str, devices: int) -> Any:
    """Final states of a simulation whose clients are divided among so many devices."""
    from kinfolk import Engine, Experiment, Phase, Training, client_level, example_level, sweep
    from kinfolk.data.sets.synthetic import synthetic_schools

    privacy = {
        "example": example_level(epsilon=3.0, delta=1e-6),
        "client": client_level(epsilon=3.0, delta=1e-3, cohort=3.0),
    }[level]
    experiment = Experiment(
        seed=0,
        privacy=privacy,
        phases=(Phase("mean_regularized", rounds=ROUNDS),),
        training=Training(batch_size=16),
        engine=Engine(devices=devices),
    )
    figure = sweep(experiment, data=[synthetic_schools(clients=5, least=20, most=40)])
    return figure.rounds(figure.rounds(figure.init([0]), 0, 1), 1, ROUNDS)


def at_homes(devices: int, released: bool = False, taped: Any = None, clients: int = CLIENTS, **level: Any) -> Any:
    """The states of clients that take turns, each on its own device, after all rounds; and what they began with."""
    from kinfolk import Engine, Experiment, ModelChoice, Phase, Training, client_level
    from kinfolk.batching import takes_turns
    from kinfolk.data.sets.synthetic import synthetic_schools
    from kinfolk.training.noise_tape import checked_for_release, with_fresh_noise
    from kinfolk.training.prepare import prepare
    from kinfolk.training.sweep import sweep_of

    experiment = Experiment(
        seed=None if released else 0,
        model=ModelChoice("mlp", (2000,)),
        privacy=client_level(epsilon=8.0, delta=1e-3, cohort=3.0, clip=0.1, **level),
        phases=(Phase("mean_regularized", ROUNDS, {"step_size": 0.01}),),
        training=Training(batch_size=16),
        engine=Engine(devices=devices),
    )
    job = prepare(experiment, synthetic_schools(clients=clients, least=20, most=40))
    job.require_checked()
    job = checked_for_release(job, ROUNDS) if released else job
    places = job.terms.inbox.sampling.capacity
    assert takes_turns(job.plan.model)
    assert job.plan.homes == devices
    assert places is not None
    figure = sweep_of(job)
    begun = figure.init([0])
    if released:
        taped = with_fresh_noise(job, begun, ROUNDS, range(ROUNDS)) if taped is None else taped
        begun = replace(begun, meters=taped.meters, server=taped.server)
    return figure.rounds(figure.rounds(copied(begun), 0, 1), 1, ROUNDS), begun


def copied(tree: Any) -> Any:
    """The same numbers in arrays of their own: those that go into rounds are used up."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(jnp.copy, tree)


def released(devices: int, taped: Any = None) -> tuple[Any, Any]:
    """What a release publishes in its first rounds on so many devices, and the state with noise that it began with."""
    import jax

    from kinfolk import Engine, Experiment, ModelChoice, Phase, example_level
    from kinfolk.data.sets.synthetic import synthetic_schools
    from kinfolk.engines.loop import Loop
    from kinfolk.training.build import as_array
    from kinfolk.training.noise_tape import checked_for_release, with_fresh_noise
    from kinfolk.training.prepare import prepare
    from kinfolk.trees import row

    experiment = Experiment(
        model=ModelChoice("mlp", (8,)),
        privacy=example_level(epsilon=3.0, delta=1e-6),
        phases=(Phase("mean_regularized", rounds=ROUNDS),),
        engine=Engine(devices=devices),
    )
    job = checked_for_release(prepare(experiment, synthetic_schools(clients=5, least=20, most=40)), ROUNDS)
    own = Loop(job.plan, as_array(job.algorithms[0]), as_array(job.terms), row(job.clients, 0))
    taped = with_fresh_noise(job, own.init(jax.random.key(0)), ROUNDS, range(ROUNDS)) if taped is None else taped
    return own.rounds(own.rounds(taped, 0, 1), 1, ROUNDS), taped


def same(one: Any, other: Any) -> None:
    """Counters alike, numbers alike but for the rounding of a client's own work."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if not jnp.issubdtype(first.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(np.asarray(first), np.asarray(second), rtol=1e-5, atol=1e-6)


def exactly(one: Any, other: Any) -> None:
    """Numbers alike to the last bit."""
    import jax
    import numpy as np

    for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


def several_devices() -> None:
    """Clients on 2 and on 8 devices: parts are filled up, and what fills them is thrown away. Where clients have their
    homes on devices, what is published is the same to the last bit, as sums of releases are of whole numbers."""
    for level in ("example", "client"):
        alone = simulated(level, 1)
        for devices in (2, 8):
            same(alone, simulated(level, devices))
    published, taped = released(1)
    same(published, released(2, taped)[0])
    alone, _ = at_homes(1, clip_quantile=0.5)
    published, taped = at_homes(1, released=True)
    for devices in (2, 8):
        same(alone, at_homes(devices, clip_quantile=0.5)[0])
        other, _ = at_homes(devices, released=True, taped=taped)
        same(published, other)
        exactly(published.shared, other.shared)


def several_processes(count: int, number: int, port: str) -> None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, number)
    same(simulated("example", count), simulated("example", 1))
    same(at_homes(count, clients=60)[0], at_homes(1, clients=60)[0])


def asked_for() -> None:
    """An experiment that wants two devices of a CPU gets them, where JAX was not used before; later it sees no more."""
    import jax
    import pytest

    from kinfolk.devices import usable
    from kinfolk.toml import ConfigError

    simulated("client", 2)
    assert jax.device_count() == 2
    with pytest.raises(ConfigError, match="until JAX is first used"):
        usable(3)


if __name__ == "__main__":
    if sys.argv[1:] == ["asked"]:
        asked_for()
    elif sys.argv[1:]:
        several_processes(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        os.environ["XLA_FLAGS"] = SEVERAL
        several_devices()
    print("the same")
