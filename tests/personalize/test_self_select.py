"""What self-selection makes of candidates: models of one's own are among them on equal terms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models
from kinfolk.outcomes import loss_at
from kinfolk.personalize.self_select import Candidate, SelfSelect, _shares
from kinfolk.types import Model, Params, Rows

CLIENTS, ROWS, UNSEEN, FEATURES = 40, 60, 400, 4


def of_clients(model: Model, generator: np.random.Generator, count: int, truth: np.ndarray) -> Rows:
    """`count` rows of every client, from its own weights."""
    x = generator.uniform(-1, 1, size=(CLIENTS, count, FEATURES))
    score = np.einsum("knf,kf->kn", x, truth)
    if model.outcome == "number":
        y = (score + 0.3 * generator.normal(size=score.shape)).astype(np.float32)
    else:
        y = (generator.logistic(size=score.shape) < score).astype(np.int32)
    return Rows(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(score.shape, bool))


def mean_loss(model: Model, params: Params, rows: Rows) -> float:
    def of_client(params: Params, rows: Rows) -> jax.Array:
        return jax.vmap(lambda x, y: model.loss(params, x, y))(rows.x, rows.y).mean()

    return float(jax.vmap(of_client)(params, rows).mean())


@pytest.mark.slow
@pytest.mark.parametrize("outcome", ["number", "binary"])
def test_a_shared_model_that_is_noise_costs_one_per_cent_at_most_and_a_right_one_helps(outcome: str) -> None:
    model = models.linear(FEATURES) if outcome == "number" else models.logistic(FEATURES)
    generator = np.random.default_rng(0)
    centre = 2 * generator.normal(size=FEATURES)
    truth = centre + 0.05 * generator.normal(size=(CLIENTS, FEATURES))
    seen, unseen = (of_clients(model, generator, count, truth) for count in (ROWS, UNSEEN))

    def against_alone(weights: np.ndarray) -> float:
        shared = ({"weights": jnp.asarray(weights[:, None], jnp.float32), "bias": jnp.zeros(1)},)
        chosen, alone = jax.jit(jax.vmap(lambda rows: SelfSelect().beside_alone(model, rows, shared)))(seen)
        return mean_loss(model, chosen, unseen) / mean_loss(model, alone, unseen)

    assert against_alone(10 * generator.normal(size=FEATURES)) < 1.01
    assert against_alone(centre) < 0.99


def test_a_target_far_from_zero_keeps_its_mean() -> None:
    """An intercept that is held near zero would be 0.015 off, half as much again as the noise."""
    generator, model = np.random.default_rng(1), models.linear(3)
    x = generator.uniform(-1, 1, size=(40, 3))
    y = 5 + 0.01 * generator.normal(size=40)
    rows = Rows(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), jnp.ones(40, bool))
    shared = ({"weights": jnp.ones((3, 1)), "bias": jnp.full(1, 4.0)},)
    for rule in ("alone", "aggregate"):
        ((layer,),) = (SelfSelect(rule=rule).choose(model, rows, shared),)
        assert abs(float(layer["bias"][0]) - y.mean()) < 0.005, rule


def test_shares_are_those_with_the_least_sum_of_losses_and_divergence() -> None:
    """Against the sum computed by hand at ten thousand other shares."""
    generator, model = np.random.default_rng(2), models.logistic(1)
    outputs, y = 2 * generator.normal(size=(3, 9)), generator.integers(0, 2, size=9)
    rows = Rows(jnp.zeros((9, 1)), jnp.asarray(y, jnp.int32), jnp.arange(9) < 7)
    sign = np.where(y == 1, 1, -1)[:7]
    losses = np.pad(np.logaddexp(0, -sign * outputs[:, :7]), ((0, 0), (0, 2)))
    assert float(loss_at("binary", jnp.asarray(outputs[0, :1]), rows.y[0])) == pytest.approx(losses[0, 0], rel=1e-5)
    every = Candidate((), jnp.asarray(outputs[..., None], jnp.float32), jnp.asarray(losses, jnp.float32), jnp.zeros(3))
    found = np.asarray(_shares(model, rows, every), float)

    def total(shares: np.ndarray) -> np.ndarray:
        together = np.logaddexp(0, -sign * (shares @ outputs[:, :7])).sum(axis=-1)
        return together + shares @ losses.sum(axis=1) + (shares * np.log(3 * shares + 1e-12)).sum(axis=-1)

    assert found.sum() == pytest.approx(1, abs=1e-5)
    assert total(found) <= total(generator.dirichlet(np.ones(3), size=10_000)).min() + 1e-3
    equal = np.full(3, 1 / 3)
    assert total(found) < total(equal) - 0.05
