"""Programs that are compiled quickly: where, and that their results are the same but for rounding."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.data.sets.synthetic import synthetic_schools
from kinfolk.engines import programs, resident, results
from kinfolk.engines.programs import Program, can_be_quick
from kinfolk.privacy.levels import example_level
from kinfolk.training.build import as_sweep
from kinfolk.training.checkpoints import keys_of
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.simulate import simulate
from kinfolk.training.sweep import sweep_of


def job(rounds: int) -> Job:
    phases, linear = (Phase("mean_regularized", rounds),), ModelChoice("linear")
    level, data = example_level(epsilon=3.0), synthetic_schools(clients=3, least=8, most=9)
    return prepare(Experiment("small", 0, model=linear, training=Training(None), privacy=level, phases=phases), data)


@pytest.mark.skipif(not can_be_quick(), reason="this XLA has no such options")
def test_a_program_that_was_compiled_quickly_computes_the_same() -> None:
    found = []
    for little in (True, False):
        made = job(3)
        assert made.plan.little_work
        plan, algorithms = replace(made.plan, little_work=little), as_sweep(made.algorithms[0])
        states = resident.start_all(plan, algorithms, keys_of(made))
        ends = jnp.int32(0), jnp.int32(3)
        states = resident.run_rounds(plan, algorithms, as_sweep(made.terms), made.clients, states, *ends)
        found.append(
            [*jax.tree.leaves(states.personal), *results.errors(plan, algorithms, made.tests, states).values()]
        )
    for quick, thorough in zip(*found, strict=True):
        np.testing.assert_allclose(quick, thorough, rtol=1e-4, atol=1e-6)


def test_the_plan_decides_and_inside_of_another_program_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(plan: resident.Plan, value: jax.Array) -> jax.Array:
        return 2 * value

    plan, program, asked = job(3).plan, Program(twice), []
    monkeypatch.setattr(programs, "can_be_quick", lambda: asked.append(True))
    assert float(program(plan, jnp.float32(3))) == 6
    assert asked == [True]
    assert float(jax.jit(lambda value: program(plan, value))(jnp.float32(3))) == 6
    assert float(program(replace(plan, little_work=False), jnp.float32(3))) == 6
    assert asked == [True]


def test_a_program_is_compiled_without_running_and_found_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, ran = [], []

    def twice(plan: resident.Plan, value: jax.Array) -> jax.Array:
        traced.append(True)
        jax.debug.callback(lambda: ran.append(True))
        return 2 * value

    monkeypatch.setattr(programs, "can_be_quick", lambda: False)
    plan, program = job(3).plan, Program(twice)
    program.compile(plan, jax.ShapeDtypeStruct((), jnp.float32))
    assert (traced, ran) == ([True], [])
    assert float(program(plan, jnp.float32(3))) == 6
    jax.effects_barrier()
    assert (traced, ran) == ([True], [True])


def test_long_runs_and_sweeps_are_optimised() -> None:
    made = job(3)
    assert made.plan.little_work
    assert not job(2000).plan.little_work
    assert not sweep_of(made, {"strength": [0.1, 1.0]}).plan.little_work


def test_a_simulation_can_still_be_compiled_by_its_user() -> None:
    made = simulate(synthetic_schools(clients=3, least=8, most=9), "fedavg", rounds=2)
    state = made.step(made.init(0))
    assert made.loop.plan.little_work
    inside = jax.jit(made.evaluate)(state)["error"]
    np.testing.assert_allclose(inside, made.evaluate(state)["error"], rtol=1e-5)
