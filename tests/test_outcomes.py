"""Outcomes that medicine uses: losses against other ways to write them, one unit per patient, fits against scipy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats
from scipy.sparse import csr_array

from kinfolk import courses, example_level, from_rows, from_sparse, models, none, recommend, simulate
from kinfolk.data.given_rows import DataError
from kinfolk.outcomes import OUTCOMES, STRAIGHT, count_loss, course_loss, level_loss, median_level, rate, remaining
from kinfolk.privacy import clipping
from kinfolk.training.scorecard import constant_output, scored
from kinfolk.types import Model
from kinfolk.units import Several, over_rows

LOGITS = jnp.array([-1.5, 0.3, 2.0, -0.2], jnp.float32)
FEATURES = 3
ALL = {name: models.generalized_linear(FEATURES, name, 4) for name in OUTCOMES}


def targets(outcome: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Some targets of each kind."""
    if outcome in ("number", "count"):
        return generator.uniform(0, 3, shape).astype(np.float32)
    if outcome == "labels":
        return generator.integers(0, 2, (*shape, 4)).astype(np.int32)
    most = {"binary": 2, "survival": 9}.get(outcome, 4)
    return generator.integers(0, most, shape).astype(np.int32)


def test_a_course_is_what_rows_for_every_interval_would_be() -> None:
    """The classical way: a row for each interval at risk, a logistic regression on all of them."""
    hazards = special.expit(np.asarray(LOGITS))
    for survived in range(5):
        lost = -np.log(1 - hazards[:survived]).sum()
        assert float(course_loss(LOGITS, jnp.int32(2 * survived))) == pytest.approx(lost, rel=1e-5)
        if survived < 4:
            came = float(course_loss(LOGITS, jnp.int32(2 * survived + 1)))
            assert came == pytest.approx(lost - np.log(hazards[survived]), rel=1e-5)


def test_levels_have_chances_that_sum_to_one() -> None:
    chances = np.exp([-float(level_loss(LOGITS, jnp.int32(level))) for level in range(5)])
    assert chances.sum() == pytest.approx(1, rel=1e-5)
    assert int(median_level(LOGITS)) == np.searchsorted(np.cumsum(chances), 0.5)
    left = np.exp(np.asarray(remaining(LOGITS)))
    np.testing.assert_allclose(left, 1 - np.cumsum(chances)[:-1], rtol=1e-4)


def test_counts_have_the_likelihood_of_poisson() -> None:
    for y in (0, 1, 7):
        found = float(count_loss(jnp.float32(0.7), jnp.float32(y)))
        assert found == pytest.approx(-stats.poisson.logpmf(y, np.exp(0.7)) - special.gammaln(y + 1), rel=1e-5)
        assert float(OUTCOMES["count"].error(jnp.log(jnp.float32(max(y, 1e-9))), jnp.float32(y))) < 1e-5
    for output in (STRAIGHT - 1, STRAIGHT + 3, 1e4):
        slope = jax.grad(count_loss)(jnp.float32(output), jnp.float32(2))
        assert float(slope) == pytest.approx(float(rate(jnp.float32(output))) - 2, rel=1e-4)


@pytest.mark.parametrize("outcome", ["survival", pytest.param("labels", marks=pytest.mark.slow)])
def test_bookkeeping_gives_the_sum_of_clipped_rows_and_people(outcome: str) -> None:
    """The unit stays the patient: one clip for all intervals of a row, and for all rows of a person."""
    generator, model = np.random.default_rng(0), ALL[outcome]
    params = jax.tree.map(lambda leaf: leaf + 0.3, model.init(jax.random.key(0)))
    plain = clipping.rows(lambda params, one: jax.grad(over_rows(model.loss))(params, *one))
    x = generator.normal(size=(6, FEATURES)).astype(np.float32)
    people = Several(generator.normal(size=(6, 2, FEATURES)).astype(np.float32), np.full((6, 2), 0.5, np.float32))
    own, plain = jax.jit(clipping.gradients(model).clipped), jax.jit(plain.clipped)
    for units in ((x, targets(outcome, (6,), generator)), (people, targets(outcome, (6, 2), generator))):
        for clip in (0.05, 100.0):
            a, b = (f(params, units, jnp.ones(6), jnp.float32(clip)) for f in (own, plain))
            jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=2e-4, atol=1e-6), a, b)
            one = own(params, units, jnp.eye(6)[2], jnp.float32(clip))
            assert sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(one)) <= clip**2 * (1 + 1e-5)


def test_intervals_clipped_one_by_one_would_let_a_patient_count_several_times() -> None:
    """What rows for every interval would do: the bound above is not met by chance."""
    model, x, y = ALL["survival"], jnp.ones(FEATURES), jnp.int32(8)
    params = model.init(jax.random.key(0))

    def part(params: Any, place: int) -> jax.Array:
        return jnp.where(jnp.arange(4) == place, jax.nn.softplus(model.predict(params, x)), 0).sum()

    each = [clipping.clip_one(jax.grad(part)(params, place), jnp.float32(1), jnp.float32(0.05)) for place in range(4)]
    several = jax.tree.map(lambda *parts: sum(parts), *each)
    one = clipping.clip_one(jax.grad(model.loss)(params, x, y), jnp.float32(1), jnp.float32(0.05))
    assert float(clipping.norm_of(several)) > 3 * float(clipping.norm_of(one))


def test_censored_times_count_where_half_an_interval_was_seen() -> None:
    time, event = np.array([0.0, 0.4, 0.6, 1.0, 3.9, 4.0, 4.1]), np.zeros(7, bool)
    assert courses(time, event, (1.0, 2.0, 4.0)).tolist() == [0, 0, 2, 2, 6, 6, 6]
    assert courses(time, ~event, (1.0, 2.0, 4.0)).tolist() == [1, 1, 1, 1, 5, 5, 6]
    with pytest.raises(DataError, match="negative"):
        courses(np.array([-1.0]), np.array([True]), (1.0,))
    with pytest.raises(DataError, match="one of each per row"):
        courses(time, event[:3], (1.0,))


def reference(outcome: str, model: Model, x: np.ndarray, y: np.ndarray) -> float:
    """The least mean loss, by scipy."""
    shapes, build = jax.tree.flatten(model.init(jax.random.key(0)))
    cuts = np.cumsum([leaf.size for leaf in shapes])[:-1]

    def value(flat: jax.Array) -> jax.Array:
        params = build.unflatten(p.reshape(s.shape) for p, s in zip(jnp.split(flat, cuts), shapes, strict=True))
        return jax.vmap(lambda a, b: model.loss(params, a, b))(x, y).mean()

    slope = jax.jit(jax.value_and_grad(value))
    start = np.concatenate([np.ravel(leaf) for leaf in shapes])

    def both(flat: np.ndarray) -> tuple[float, np.ndarray]:
        found, gradient = slope(jnp.asarray(flat, jnp.float32))
        return float(found), np.asarray(gradient, float)

    return float(optimize.minimize(both, start, jac=True, method="L-BFGS-B").fun)


@pytest.mark.parametrize(
    "outcome", ["survival", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ordinal", "count", "labels"))]
)
def test_training_without_noise_reaches_the_best_fit(outcome: str) -> None:
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, (240, FEATURES)).astype(np.float32)
    score = 2 * x[:, 0] - x[:, 1]
    noisy = score + generator.logistic(size=240) / 2
    y: Any = {
        "survival": courses(np.exp(-noisy), generator.uniform(size=240) < 0.7, (0.3, 0.8, 1.5, 4.0)),
        "ordinal": np.digitize(noisy, [-1, 0, 1]).astype(np.int32),
        "count": generator.poisson(np.exp(score / 2)).astype(np.float32),
        "labels": (noisy[:, None] > np.array([-1.0, 0.0, 0.5, 1.0])).astype(np.int32),
    }[outcome]
    data = from_rows(x, y, np.repeat(["a", "b"], 120), outcome=outcome, classes=4, test_fraction=0.0)
    plan = recommend(data, none(), seed=0, method="fedavg", rounds=120, batch_size=0)
    sim = simulate(data, "fedavg", none(), rounds=120, options=plan.phases[0].options, training=plan.training)
    state = sim.step(sim.init(0), plan.rounds)
    params = jax.tree.map(lambda leaf: leaf[0], sim.models(state))
    model = ALL[outcome]
    found = float(jax.vmap(lambda a, b: model.loss(params, a, b))(x, y).mean())
    assert found < reference(outcome, model, x, y) + 0.02


@pytest.mark.slow
def test_a_constant_is_the_best_that_no_feature_can_beat() -> None:
    """Kaplan and Meier's curve, the mean, the median level, each label's majority: by scipy, without features."""
    generator = np.random.default_rng(3)
    for outcome, model in ALL.items():
        if outcome == "number":
            continue
        y = targets(outcome, (200,), generator)
        output = constant_output(outcome, y, np.ones(200), 4)
        nothing = np.zeros((200, FEATURES), np.float32)
        least = reference(outcome, model, nothing, y)
        found = float(jax.vmap(lambda one, o=output, m=model: m.output_loss(jnp.atleast_1d(o), one))(y).mean())
        assert found == pytest.approx(least, abs=2e-3), outcome
    output = np.repeat(constant_output("survival", np.array([1, 2, 3]), np.ones(3), 1)[None], 3, axis=0)
    assert scored("survival", output, np.array([1, 2, 0]))["c_index"] == 0.5


@pytest.mark.slow
def test_five_hundred_labels_of_bags_of_words_are_learned() -> None:
    generator = np.random.default_rng(4)
    words = (generator.uniform(size=(120, 200)) < 0.05).astype(np.float32)
    tags = (words @ (generator.uniform(size=(200, 500)) < 0.02) > 0).astype(np.int32)
    data = from_sparse(csr_array(words), tags, np.arange(120) % 4, outcome="labels", classes=500, test_fraction=0.25)
    plan = recommend(data, example_level(epsilon=8), seed=0, method="fedavg", rounds=5, batch_size=0)
    assert plan.model.name == "sparse_multilabel"
    sim = simulate(
        data, "fedavg", example_level(epsilon=8), rounds=5, model=plan.model, options=plan.phases[0].options,
        training=plan.training,
    )  # fmt: skip
    begin = sim.init(0)
    before, after = (float(np.mean(sim.evaluate(one)["loss"])) for one in (begin, sim.step(begin, 5)))
    assert after < before
