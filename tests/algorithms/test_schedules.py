"""Schedules reach the local steps."""

import numpy as np
import pytest

from kinfolk.privacy.levels import none
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training import prepare as jobs
from kinfolk.training.experiment import Experiment, Phase


def test_a_schedule_is_a_table_in_the_file_and_changes_the_steps() -> None:
    steps = {"start": 0.1, "factor": 0.0, "every": 2}
    experiment = Experiment(seed=0, privacy=none(), phases=(Phase("fedavg", 4, {"step_size": steps}),))
    assert from_toml(to_toml(experiment), Experiment) == experiment
    algorithm = jobs.build_algorithm(experiment.phases[0], "none")
    from kinfolk.algorithms.schedules import at

    assert [float(at(algorithm.step_size, n)) for n in range(4)] == pytest.approx([0.1, 0.1, 0, 0])  # type: ignore
    with pytest.raises(ConfigError, match="every=0 must be at least 1"):
        jobs.build_algorithm(Phase("fedavg", 4, {"step_size": {"start": 0.1, "every": 0}}), "none")


@pytest.mark.slow
@pytest.mark.usefixtures("small_schools")
def test_a_step_size_of_zero_stops_training() -> None:
    import jax
    import jax.numpy as jnp

    from kinfolk.engines import resident
    from kinfolk.training.build import as_sweep
    from kinfolk.training.prepare import prepare

    stopping = Phase("fedavg", 4, {"step_size": {"start": 0.1, "factor": 0.0, "every": 2}})
    job = prepare(Experiment(seed=0, privacy=none(), phases=(stopping,)))
    algorithm = as_sweep(job.algorithms[0])
    states = resident.start_all(job.plan, algorithm, jax.vmap(jax.random.key)(jnp.arange(1, dtype=jnp.uint32)))
    shared = []
    for begin in range(4):
        states = resident.run_rounds(
            job.plan, algorithm, as_sweep(job.terms), job.clients, states, jnp.int32(begin), jnp.int32(begin + 1)
        )
        shared.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(states.shared)]))
    assert (shared[0] != shared[1]).any()
    np.testing.assert_array_equal(shared[1], shared[3])
