"""Run by tests in processes of their own: the same rounds on one device and on several, or in several processes.

python -m tests.engines.on_devices            # 8 devices on one CPU
python -m tests.engines.on_devices 2 0 PORT   # the first of 2 processes
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

ROUNDS = 3
SEVERAL = "--xla_force_host_platform_device_count=8"


def simulated(level: str, devices: int) -> Any:
    """Final states of a simulation whose clients are divided among so many devices."""
    from kinfolk import Experiment, Phase, Training, client_level, example_level, sweep
    from kinfolk.data.sets.synthetic import synthetic_schools

    privacy = {
        "example": example_level(epsilon=3.0, delta=1e-6),
        "client": client_level(epsilon=3.0, delta=1e-3, cohort=3.0),
    }[level]
    phases = (Phase("mean_regularized", rounds=ROUNDS),)
    experiment = Experiment(seed=0, privacy=privacy, phases=phases, training=Training(batch_size=16))
    figure = sweep(experiment, data=[synthetic_schools(clients=5, least=20, most=40)])
    figure = replace(figure, plan=replace(figure.plan, devices=devices))
    return figure.rounds(figure.init([0]), 0, ROUNDS)


def released(devices: int, taped: Any = None) -> tuple[Any, Any]:
    """What a release publishes in its first rounds on so many devices, and the state with noise that it began with."""
    import jax

    from kinfolk import Experiment, Phase, example_level
    from kinfolk.data.sets.synthetic import synthetic_schools
    from kinfolk.engines.loop import Loop
    from kinfolk.training.build import as_array
    from kinfolk.training.noise_tape import checked_for_release, with_fresh_noise
    from kinfolk.training.prepare import prepare
    from kinfolk.trees import row

    experiment = Experiment(
        privacy=example_level(epsilon=3.0, delta=1e-6), phases=(Phase("mean_regularized", rounds=ROUNDS),)
    )
    job = checked_for_release(prepare(experiment, synthetic_schools(clients=5, least=20, most=40)), ROUNDS)
    plan = replace(job.plan, devices=devices)
    own = Loop(plan, as_array(job.algorithms[0]), as_array(job.terms), row(job.clients, 0))
    taped = with_fresh_noise(job, own.init(jax.random.key(0)), ROUNDS, range(ROUNDS)) if taped is None else taped
    return own.rounds(taped, 0, ROUNDS), taped


def same(one: Any, other: Any) -> None:
    """Counters alike, numbers alike but for the rounding of a client's own work."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if not jnp.issubdtype(first.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(np.asarray(first), np.asarray(second), rtol=1e-5, atol=1e-6)


def several_devices() -> None:
    """Five clients on 2 and on 8 devices: parts are filled up, and what fills them is thrown away."""
    for level in ("example", "client"):
        alone = simulated(level, 1)
        for devices in (2, 8):
            same(alone, simulated(level, devices))
    published, taped = released(1)
    same(published, released(2, taped)[0])


def several_processes(count: int, number: int, port: str) -> None:
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, number)
    same(simulated("example", count), simulated("example", 1))


if __name__ == "__main__":
    if sys.argv[1:]:
        several_processes(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        os.environ["XLA_FLAGS"] = SEVERAL
        several_devices()
    print("the same")
