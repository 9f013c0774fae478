"""Strength for free: it costs nothing more, it goes where it should, and it is written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models, trees
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.algorithms.mean_regularized_auto import (
    MeanRegularizedAuto,
    follow,
    kept_after,
    new_client,
    new_guide,
    own_strengths,
)
from kinfolk.algorithms.registry import resolve
from kinfolk.data import registry
from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.sets.catalogue import BuiltIn
from kinfolk.engines import resident
from kinfolk.privacy.choice import ExactMin
from kinfolk.privacy.gates import DataGate
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.privacy.mechanisms import ExactSum, GaussianSum, Sampling
from kinfolk.privacy.release import PrivacyError, new_meter
from kinfolk.toml import ConfigError
from kinfolk.training.build import as_sweep, build_algorithm
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.loop import run
from kinfolk.training.prepare import Job, prepare
from kinfolk.types import Rows

pytestmark = pytest.mark.slow

AUTO = Phase("mean_regularized", 40, {"strength": "auto", "step_size": 0.3})


def federation(spread: float, seed: int = 0, size: int = 60) -> Federation:
    """Twelve linear tasks that differ by `spread`."""
    generator = np.random.default_rng(seed)
    x, y = generator.uniform(-1, 1, size=(12, size, 3)), np.zeros((12, size))
    for k in range(12):
        y[k] = x[k] @ (0.5 + spread * generator.normal(size=3)) + 0.1 * generator.normal(size=size)
    names = np.repeat([f"c{k:02d}" for k in range(12)], size)
    return from_rows(x.reshape(-1, 3).astype(np.float32), y.ravel().astype(np.float32), names)


def job(data: Federation, phase: Phase, level: PrivacyLevel, batch: int | None = None, **options: Any) -> Job:
    experiment = Experiment(seed=0, privacy=level, phases=(phase,), training=Training(batch), **options)
    return prepare(experiment, [data])


def trained(one: Job) -> resident.State:
    algorithm = as_sweep(one.algorithms[0])
    states = resident.start_all(one.plan, algorithm, jax.random.key(0)[None])
    rounds = jnp.int32(one.experiment.rounds)
    return resident.run_rounds(one.plan, algorithm, as_sweep(one.terms), one.clients, states, jnp.int32(0), rounds)


def strength(one: Job) -> float:
    """Of the weights; the bias is the same for all clients."""
    shared = trees.row(trained(one).shared, (0, 0))
    return float(one.algorithms[0].describe(shared)["0.weights"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("batch", [None, 8])
def test_choosing_the_strength_costs_nothing(batch: int | None) -> None:
    data, level = federation(0.1), example_level(2.0, 1e-3)
    plain, auto = (job(data, phase, level, batch) for phase in (Phase("mean_regularized", 40), AUTO))
    for kind, counted in plain.account.uses.items():
        np.testing.assert_array_equal(counted, auto.account.uses[kind])
    assert plain.account.costs() == auto.account.costs()
    assert plain.checks[0].client_releases == auto.checks[0].client_releases
    assert auto.checks[0].violations == ()


def test_ditto_pays_twice_as_before_and_not_more() -> None:
    data, level = federation(0.1), example_level(2.0, 1e-3)
    plain = job(data, Phase("ditto", 5), level)
    auto = job(data, Phase("ditto", 5, {"strength": "auto"}), level)
    np.testing.assert_array_equal(plain.account.uses["gradient"], auto.account.uses["gradient"])
    assert auto.checks[0].violations == ()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained(auto).personal))


@pytest.mark.parametrize("batch", [None, 16])
def test_strength_rises_where_clients_agree_and_falls_where_they_differ(batch: int | None) -> None:
    alike = strength(job(federation(0.0), AUTO, example_level(0.5, 1e-3), batch))
    apart = strength(job(federation(1.0), AUTO, example_level(30.0, 1e-3), batch))
    assert apart < 0.1
    assert alike > 1.0


@pytest.mark.parametrize("pull", ["step", "round"])
def test_without_learning_it_is_mean_regularisation(pull: str) -> None:
    """Strength, steps and shared model are those of the plain method; only what is returned is averaged."""
    data, level = federation(0.3), example_level(2.0, 1e-3)
    fixed = MeanRegularizedAuto(step_size=0.3, start=2.0, learning=0.0, scaling=0.0, pull=pull)
    one = job(data, AUTO, level, 16)
    plain = replace(one, algorithms=(MeanRegularized(2.0, 0.3, pull=pull),))
    found, expected = trained(replace(one, algorithms=(fixed,))), trained(plain)
    ended = expected.personal.model if pull == "step" else expected.personal
    for a, b in zip(
        jax.tree.leaves((found.personal.track.model, found.shared["model"])),
        jax.tree.leaves((ended, expected.shared)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def exact_gate(x: np.ndarray, y: np.ndarray, steps: int) -> DataGate:
    model = models.linear(x.shape[1])
    rows = Rows(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(x), bool))
    meter = new_meter(jax.random.key(0), ("gradient",))
    sum_, choose = ExactSum(Sampling(jnp.float32(1))), ExactMin(jnp.float32(1))
    return DataGate(rows, meter, sum_, choose, jnp.float32(len(x)), jnp.int32(steps), jnp.int32(0), steps, model)


@pytest.mark.parametrize("pull", ["step", "round"])
def test_the_carried_derivative_is_the_true_one_where_the_curvature_is(pull: str) -> None:
    """Orthogonal features of curvature 0.4 in weights and bias: the recursion equals finite differences."""
    x = np.sqrt(0.4) * np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    model = models.linear(2)
    y = np.array([0.3, -0.2, 0.9, 0.1], np.float32)
    start = jax.tree.map(lambda leaf: leaf + 0.5, model.init(jax.random.key(0)))
    centre = jax.tree.map(lambda leaf: leaf - 0.3, start)

    def end(log_strength: float) -> Any:
        strengths = jax.tree.map(lambda _: jnp.exp(jnp.float32(log_strength)), start)
        gate = exact_gate(x, y, 6)
        track, _, _ = follow(new_client(start).track, gate, centre, strengths, 0.2, 0.4, jnp.float32(0), pull=pull)
        return track

    step = 0.05
    numeric = jax.tree.map(lambda a, b: (a - b) / (2 * step), end(0.2 + step).model, end(0.2 - step).model)
    np.testing.assert_allclose(end(0.2).sensitivity[0]["weights"], numeric[0]["weights"], rtol=1e-2)


def test_a_large_step_does_not_make_the_derivative_grow() -> None:
    """Beyond one over the curvature, what was carried would double in every step, with a sign that flips."""
    x, model = np.ones((4, 2), np.float32), models.linear(2)
    start = jax.tree.map(lambda leaf: leaf + 0.5, model.init(jax.random.key(0)))
    centre, strengths = trees.zeros_like(start), jax.tree.map(lambda _: jnp.float32(1), start)
    gate = exact_gate(x, np.zeros(4, np.float32), 8)
    track, _, _ = follow(new_client(start).track, gate, centre, strengths, 0.01, 300.0, jnp.float32(1))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves((track.sensitivity, track.change))) == 0


@pytest.mark.parametrize(("power", "expected"), [(0.0, 2.0), (1.0, 14 / 6), (1e6, 3.0)])
def test_the_average_over_rounds_is_as_long_as_asked(power: float, expected: float) -> None:
    kept = new_client({"w": jnp.zeros(1)})
    for number in (1.0, 2.0, 3.0):
        kept = kept_after(kept, kept.track._replace(model={"w": jnp.full(1, number)}), power)
    assert float(kept.average["w"][0]) == pytest.approx(expected, abs=1e-4)


def test_a_noisier_client_is_pulled_harder() -> None:
    guide = new_guide({"w": jnp.zeros(2)}, 3.0)._replace(log_variance=jnp.log(jnp.float32(0.01)), rounds=jnp.float32(1))
    noisy, precise = (own_strengths(guide, jnp.float32(v), 1.0)["w"] for v in (0.04, 0.0025))
    assert (float(noisy), float(precise)) == pytest.approx((12.0, 0.75), rel=1e-5)
    assert float(own_strengths(guide, jnp.float32(0.04), 0.0)["w"]) == pytest.approx(3.0, rel=1e-5)


def test_noise_and_clip_of_a_gate_are_public_numbers() -> None:
    gate = exact_gate(np.ones((4, 1), np.float32), np.ones(4, np.float32), 1)
    assert (float(gate.noise), float(gate.clip)) == (0.0, 0.0)
    private = replace(gate, _mechanism=GaussianSum(jnp.float32(2), jnp.float32(3), Sampling(jnp.float32(0.5))))
    assert float(private.noise) == pytest.approx(2 * 3 / (0.5 * 4))
    assert float(private.clip) == 2.0
    start = gate._model.init(jax.random.key(0))

    def bias(key: jax.Array) -> jax.Array:
        return replace(private, _meter=new_meter(key, ("gradient",))).gradient(start)[0][0]["bias"][0]

    spread = np.std(jax.vmap(bias)(jax.random.split(jax.random.key(1), 400)))
    assert spread == pytest.approx(float(private.noise), rel=0.15)


def test_differentiating_through_the_gate_is_refused() -> None:
    gate = exact_gate(np.ones((4, 1), np.float32), np.ones(4, np.float32), 1)
    gate = replace(gate, _mechanism=GaussianSum(jnp.float32(1), jnp.float32(1)))
    start = gate._model.init(jax.random.key(0))

    def loss(factor: jax.Array) -> jax.Array:
        gradient, _ = gate.gradient(trees.scale(factor, start))
        return trees.squared_norm(gradient)

    with pytest.raises(PrivacyError, match="derivative"):
        jax.grad(loss)(jnp.float32(1))


def test_a_network_has_a_strength_per_layer() -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(size=(6 * 20, 6, 6, 1)).astype(np.float32)
    y = generator.integers(0, 3, size=6 * 20).astype(np.int32)
    names = np.repeat([f"c{k}" for k in range(6)], 20)
    data = from_rows(x, y, names, outcome="classes", classes=3)
    phase = Phase("mean_regularized", 2, {"strength": "auto"})
    one = job(data, phase, example_level(5.0, 1e-3), 8, model=ModelChoice("cnn", (4,)))
    assert one.checks[0].violations == ()
    shared = trees.row(trained(one).shared, (0, 0))
    found = one.algorithms[0].describe(shared)  # type: ignore[attr-defined]
    assert sorted(found) == ["0.bias", "0.weights", "4.bias", "4.weights"]
    assert all(np.isfinite(value) and value > 0 for value in found.values())


def test_a_run_writes_its_strengths_and_says_what_they_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "synthetic_schools", BuiltIn(lambda: federation(0.1)))
    experiment = Experiment(
        seed=0,
        data=DataChoice("synthetic_schools"),
        privacy=example_level(3.0),
        phases=(Phase("mean_regularized", 40, {"strength": "auto"}),),
    )
    where = run(experiment, tmp_path)
    records = [json.loads(line) for line in (where.public / "strengths.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(1, 41))  # 20 chunks of two rounds
    assert set(records[-1]["strength"]) == {"0.bias", "0.weights"}
    assert "privacy spent on choosing the strength: 0" in (where.public / "statement.txt").read_text()
    assert where.statement().get("strength_learned", False) is True


def test_where_auto_does_not_exist() -> None:
    with pytest.raises(ValueError, match="exists for mean_regularized and ditto, not for mocha"):
        resolve("mocha", {"strength": "auto"})
    with pytest.raises(ConfigError, match="cannot run at level='client'"):
        build_algorithm(Phase("mean_regularized", 3, {"strength": "auto"}), "client")
    assert resolve("mean_regularized", {"strength": 2.0}) == ("mean_regularized", {"strength": 2.0})
    auto = build_algorithm(Phase("ditto", 3, {"strength": "auto", "pull": "round"}), "example")
    assert (auto.pull, auto.apart) == ("round", True)  # type: ignore[attr-defined]
