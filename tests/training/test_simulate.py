"""A loop of one's own: the same numbers as a run, the same checks, and no leading axes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_matrix

from kinfolk import (
    Experiment,
    Federation,
    ModelChoice,
    Phase,
    PrivacyLevel,
    Training,
    client_level,
    example_level,
    from_rows,
    none,
    run,
    simulate,
    trees,
)
from kinfolk.algorithms.local_steps import descend
from kinfolk.data.sparse import from_sparse
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError

ROUNDS = 4


def federation() -> Federation:
    x = np.random.default_rng(0).uniform(-1, 1, size=(60, 2)).astype(np.float32)
    who = np.repeat(list("abc"), [14, 20, 26])
    return from_rows(x, x.sum(axis=1), who, name="three")


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(example_level(epsilon=4.0, delta=1e-3), marks=pytest.mark.slow),
        pytest.param(client_level(epsilon=4.0, delta=1e-2, cohort=2.0), marks=pytest.mark.slow),
        pytest.param(none(), marks=pytest.mark.slow),
    ],
    ids=["example", "client", "none"],
)
def test_a_loop_of_ones_own_is_a_run(level: PrivacyLevel, tmp_path: Path) -> None:
    training = Training(batch_size=8)
    sim = simulate(federation(), "mean_regularized", level, rounds=ROUNDS, options={"strength": 0.5}, training=training)
    state = sim.init(3)
    for number in range(ROUNDS):
        assert int(state.round) == number
        state = sim.step(state)
    phases = (Phase("mean_regularized", ROUNDS, {"strength": 0.5}),)
    where = run(Experiment(seed=3, privacy=level, training=training, phases=phases), tmp_path, data=federation())
    with np.load(next(where.path.glob("*/models.npz"))) as file:
        models = sim.models(state)
        np.testing.assert_allclose(models[0]["weights"], file["[0]['weights']"], rtol=2e-5, atol=1e-6)
        assert sim.ids == tuple(file["ids"].tolist())
    error = float(np.mean(sim.evaluate(state)["error"]))
    assert error == pytest.approx(where.metrics()[-1]["error"], rel=1e-4)
    spent = where.statement()["epsilon"]
    assert sim.epsilon(state) == sim.epsilon() == pytest.approx(spent or 0.0)
    assert sim.epsilon(0) == 0.0
    assert sim.epsilon(2) <= sim.epsilon()


@pytest.mark.slow
def test_states_are_values() -> None:
    """An old state can be used again; many rounds at once are as one by one; seeds and rounds can be mapped."""
    sim = simulate(federation(), "fedavg", client_level(noise_multiplier=1.0), rounds=ROUNDS)
    first = sim.init(0)
    one, again = sim.step(first), sim.step(first)
    jax.tree.map(np.testing.assert_array_equal, one.shared, again.shared)
    whole, parts = sim.step(first, ROUNDS), sim.step(sim.step(one), 2)
    jax.tree.map(np.testing.assert_array_equal, whole.shared, parts.shared)
    last, curve = jax.lax.scan(lambda s, _: (sim.step(s), sim.evaluate(s)["error"]), first, length=ROUNDS)
    assert curve.shape == (ROUNDS, 3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), last.shared, whole.shared)
    seeds = jax.vmap(sim.step)(jax.vmap(sim.init)(jnp.arange(2)))
    assert jax.tree.leaves(seeds.shared)[0].shape == (2, *jax.tree.leaves(one.shared)[0].shape)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, rtol=1e-5, atol=1e-6), seeds.shared, one.shared)


@pytest.mark.slow
def test_no_more_rounds_than_the_noise_was_calibrated_for() -> None:
    sim = simulate(federation(), "fedavg", client_level(epsilon=4.0, delta=1e-2), rounds=2)
    state = sim.step(sim.init(0), 2)
    with pytest.raises(PrivacyError, match="round=3 is more than rounds=2, which the noise was calibrated for"):
        sim.step(state)
    more = jax.jit(sim.step)(state)
    assert int(more.round) == 2, "where it cannot be refused, nothing happens"
    jax.tree.map(np.testing.assert_array_equal, more.shared, state.shared)
    with pytest.raises(ConfigError, match="rounds=3 must lie between 0 and the 2"):
        sim.epsilon(3)


def test_a_state_with_other_meters_has_no_epsilon() -> None:
    sim = simulate(federation(), "fedavg", client_level(epsilon=4.0, delta=1e-2), rounds=2)
    state = sim.step(sim.init(0), 2)
    with pytest.raises(PrivacyError, match="counted other uses"):
        sim.epsilon(replace(state, round=jnp.int32(1)))


@trees.register
@dataclass(frozen=True)
class Mean:
    """A method of one's own: the mean of the clients' moves; `leak` shows the messages themselves."""

    step_size: Any = 0.1
    leak: bool = field(default=False, metadata={"static": True})

    def init(self, params: Any, clients: int) -> Any:
        return params

    def init_client(self, shared: Any, slot: Any) -> Any:
        return ()

    def client(self, shared: Any, personal: Any, gate: Any) -> tuple[Any, Any, Any]:
        model, gate = descend(shared, gate, self.step_size)
        return trees.subtract(model, shared), personal, gate

    def server(self, shared: Any, inbox: Any) -> tuple[Any, Any]:
        if self.leak:
            return trees.add(shared, jax.tree.map(lambda leaf: leaf.mean(axis=0), inbox._messages)), inbox
        move, inbox = inbox.mean()
        return trees.add(shared, move), inbox

    def model(self, shared: Any, personal: Any) -> Any:
        return shared


def test_a_method_of_ones_own_is_trained_and_checked() -> None:
    level = client_level(noise_multiplier=1.0)
    own, known = (simulate(federation(), method, level, rounds=2) for method in (Mean(), "fedavg"))
    a, b = (sim.step(sim.init(0), 2) for sim in (own, known))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a.shared, b.shared)
    assert own.epsilon(a) == known.epsilon(b) > 0
    with pytest.raises(PrivacyError, match="the shared state depends on data other than through a release"):
        simulate(federation(), Mean(leak=True), level, rounds=2)
    with pytest.raises(ConfigError, match="options are for a method by name"):
        simulate(federation(), Mean(), level, rounds=2, options={"step_size": 0.5})


def test_a_model_by_name() -> None:
    sim = simulate(federation(), "local", none(), rounds=1, model=ModelChoice("mlp", (3,)))
    assert jax.tree.leaves(sim.models(sim.step(sim.init(0))))[0].shape[0] == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"privacy": "example"}, "privacy='example' is no privacy level: give example_level"),
        ({"model": "logistic"}, r"model='logistic' is a name: give ModelChoice\('logistic'\)"),
        ({"model": 3}, "model=int: give a ModelChoice"),
        ({"data": "school"}, "data='school' is no Federation"),
        ({"training": 32}, "training=32 is no Training"),
        ({"method": "few_releases_binary", "rounds": 14}, "on data 'three': few_releases_binary is for logistic"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_words(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(**{"data": federation(), "method": "fedavg", "privacy": none(), "rounds": 1, **given})


def test_what_is_printed_says_what_it_is_and_shows_no_rows() -> None:
    sim = simulate(federation(), "ditto", rounds=2)
    said = "Simulation(method='ditto', level='example', epsilon=3, clients=3, rounds=2, data='three')"
    assert repr(sim) == said, "no level was given, and what that means is shown"
    assert repr(sim.init(0)) == "SimulationState(round=0)"
    assert "level='none', clients" in repr(simulate(federation(), "fedavg", none(), rounds=1))


def test_errors_that_are_no_numbers_are_warned_of() -> None:
    sim = simulate(federation(), "fedavg", none(), rounds=30, options={"step_size": 1e6})
    with pytest.warns(UserWarning, match="choose a smaller step_size"):
        sim.evaluate(sim.step(sim.init(0), 30))
    jax.eval_shape(sim.evaluate, sim.init(0))


def test_clients_without_test_rows_are_no_divergence() -> None:
    x = np.ones((12, 2), np.float32)
    data = from_rows(x, x[:, 0], np.repeat(list("ab"), 6), test_fraction=0.0)
    sim = simulate(data, "fedavg", none(), rounds=1)
    assert np.isnan(sim.evaluate(sim.init(0))["error"]).all()


def test_sparse_rows_have_a_linear_model_of_their_own() -> None:
    entries = csr_matrix(np.eye(12, 8, dtype=np.float32))
    data = from_sparse(entries, np.arange(12) % 3, np.repeat(list("ab"), 6), outcome="classes", classes=3)
    assert simulate(data, "fedavg", none(), rounds=1).job.experiment.model.name == "sparse_softmax"
