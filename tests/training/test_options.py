"""Options of training that every method shares: tail averages, weights, pooled data, features in several arrays."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models, trees
from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import DataError, from_rows, pooled
from kinfolk.data.sets.synthetic import synthetic_schools
from kinfolk.engines import resident, results
from kinfolk.engines.layout import lay_out
from kinfolk.privacy.levels import Level, client_level, example_level, none
from kinfolk.privacy.release import PrivacyError
from kinfolk.report import line_chart
from kinfolk.toml import ConfigError
from kinfolk.training import loop
from kinfolk.training.build import as_sweep
from kinfolk.training.experiment import Experiment, Phase, Training
from kinfolk.training.prepare import prepare


def small(**changes: object) -> Experiment:
    base = Experiment(seed=0, privacy=example_level(epsilon=4, delta=1e-4), phases=(Phase("mean_regularized", 6),))
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_tail_average_is_the_mean_of_the_last_models() -> None:
    job = prepare(small(training=Training(tail=0.5)))
    assert job.plan.tail_from == 3
    algorithms, terms = as_sweep(job.algorithms[0]), as_sweep(job.terms)
    state = resident.start_all(job.plan, algorithms, jax.random.key(0)[None])
    seen = []
    for number in range(6):
        chunk = (jnp.int32(number), jnp.int32(number + 1))
        state = resident.run_rounds(job.plan, algorithms, terms, job.clients, state, *chunk)
        newest = np.asarray(trees.row(state.personal, (0, 0))[0]["weights"])
        if number == 1:
            np.testing.assert_allclose(np.asarray(state.models[0]["weights"])[0, 0], newest, rtol=1e-5)
        seen.append(newest)
    average = np.asarray(state.models[0]["weights"])[0, 0]
    np.testing.assert_allclose(average, np.mean(seen[3:], axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_tail_average_is_free_and_helps_against_noise(tmp_path: Path) -> None:
    noisy = small(privacy=example_level(epsilon=0.5), phases=(Phase("mean_regularized", 40),))
    last = loop.run(noisy, tmp_path)
    mean = loop.run(replace(noisy, training=Training(tail=0.5)), tmp_path)
    assert mean.statement()["parties"] == last.statement()["parties"]
    assert mean.metrics()[-1]["error"] < last.metrics()[-1]["error"]


@pytest.mark.slow
def test_weights_by_precision_follow_each_clients_own_noise() -> None:
    job = prepare(small(training=Training(weights="precision")))
    weights = np.asarray(job.clients.weights)[0]
    noise = np.asarray(job.terms.data.noise_multiplier)  # type: ignore[union-attr]
    sizes, steps = job.federations[0].train.sizes, np.asarray(job.clients.steps)[0]
    batch = np.minimum(32, sizes)
    expected = steps * (batch / noise) ** 2
    np.testing.assert_allclose(weights, expected / expected.mean(), rtol=1e-4)
    with pytest.raises(ConfigError, match="needs noise at the clients"):
        prepare(small(privacy=client_level(epsilon=4), training=Training(weights="precision")))


@pytest.mark.slow
def test_pooled_data_are_everybodys_and_never_released(tmp_path: Path) -> None:
    data = synthetic_schools()
    together = pooled(data)
    assert together.train.sizes.tolist() == [data.train.sizes.sum()]
    np.testing.assert_array_equal(together.test.y[0][: data.test.sizes[0]], data.test.y[0][: data.test.sizes[0]])
    run = loop.run(small(data=DataChoice(pooled=True), privacy=none(), phases=(Phase("local", 30),)), tmp_path)
    assert run.metrics()[-1]["error"] < 0.5
    with pytest.raises(PrivacyError, match="reference for simulations"):
        loop.run(small(seed=None, data=DataChoice(pooled=True), privacy=example_level(epsilon=4)), tmp_path)


@pytest.mark.slow
def test_features_may_be_several_arrays(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = {"numbers": generator.normal(size=(40, 2)), "label": generator.integers(0, 3, 40)}
    y = x["numbers"].sum(axis=1) + x["label"]
    data = from_rows(x, y, np.repeat(["a", "b", "c", "d"], 10))
    assert data.train.x["numbers"].shape == (4, 8, 2)
    assert data.train.x["label"].dtype.kind == "i"
    with pytest.raises(DataError, match="several arrays"):
        _ = data.shape

    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"slope": jnp.zeros(2), "levels": jnp.zeros(3)}

    def apply(params: dict[str, jax.Array], x: dict[str, jax.Array]) -> jax.Array:
        return x["numbers"] @ params["slope"] + params["levels"][x["label"]]

    model = models.from_functions(init, apply, "number")
    clients, tests, widths, steps = lay_out([data], batch_size=None, epochs=1)
    plan = resident.Plan(model, Level.NONE, widths, steps)
    job = prepare(small(privacy=none()))
    algorithms = as_sweep(job.algorithms[0])
    state = resident.start_all(plan, algorithms, jax.random.key(0)[None])
    terms = jax.tree.map(lambda leaf: leaf[:, :4] if leaf.ndim > 1 and leaf.shape[1] > 4 else leaf, as_sweep(job.terms))
    state = resident.run_rounds(plan, algorithms, terms, clients, state, jnp.int32(0), jnp.int32(60))
    assert float(results.errors(plan, algorithms, tests, state)["error"].mean()) < 0.5 * float(np.var(y))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"a": np.ones((3, 1)), "b": np.ones((2, 1))}, r"x\['b'\] has 2 rows"),
        ({"a": np.array([[np.nan]] * 3)}, r"x\['a'\] has NaN"),
    ],
)
def test_bad_arrays_are_named(x: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_rows(x, np.zeros(3), ["a", "a", "a"])


def test_a_choice_by_errors_needs_no_bound() -> None:
    with pytest.raises(ValueError, match="its bound is 1"):
        example_level(epsilon=1, choice_score="error", choice_bound=2.0)
    with pytest.raises(ValueError, match="choice_score='mood'"):
        example_level(epsilon=1, choice_score="mood")


def test_charts_show_every_series_and_leave_out_what_is_not_finite() -> None:
    svg = line_chart.lines(
        "A & B", {"one": [(1, 2), (10, float("nan")), (100, 3)], "two <": [(1, 5)]}, "x", "y", log_across=True
    )
    assert svg.count("<polyline") == 2
    assert svg.count("<circle") == 3
    assert "A &amp; B" in svg
    assert "two &lt;" in svg
    assert line_chart.lines("nothing", {}, "x", "y").startswith("<svg")
