"""Models against independent computations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import batching, models, outcomes, trees
from kinfolk.privacy import clipping
from kinfolk.toml import ConfigError
from kinfolk.training.build import build_model
from kinfolk.training.experiment import ModelChoice
from kinfolk.types import Model

pytestmark = pytest.mark.usefixtures("own_programs")

KEY = jax.random.key(1)


def image_model() -> Model:
    layers = (models.Conv(2, 3, 3, "SAME"), models.Relu(), models.MaxPool(2), models.Conv(3, 4, 2), models.Relu())
    return models.sequential((*layers, models.Flatten(), models.Dense(36, 5)), "classes")


def matrix_model() -> Model:
    """Its first layer multiplies every row of an example, which is a matrix, with the same weights."""
    return models.sequential((models.Dense(5, 3), models.Relu(), models.Flatten(), models.Dense(12, 4)), "classes")


MODELS = {
    "linear": (models.linear(6), (6,), "number"),
    "logistic": (models.logistic(6), (6,), "binary"),
    "softmax": (models.softmax(6, 4), (6,), "classes"),
    "mlp": (models.mlp(6, 4, (7, 5)), (6,), "classes"),
    "mlp regression": (models.mlp(6, 1, (7,), "number"), (6,), "number"),
    "matrix": (matrix_model(), (4, 5), "classes"),
    "cnn": (image_model(), (8, 8, 2), "classes"),
    "cnn_small": (models.cnn_small(14, 4), (14, 14, 1), "classes"),
}
SOME = ("linear", "matrix")
NAMES = [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in MODELS]


def batch(shape: tuple[int, ...], outcome: str, rows: int = 9) -> tuple[jax.Array, jax.Array]:
    x = jax.random.normal(KEY, (rows, *shape))
    labels = {
        "number": jax.random.normal(KEY, (rows,)),
        "binary": jnp.arange(rows) % 2,
        "classes": jnp.arange(rows) % 4,
    }
    return x, labels[outcome]


def params_of(model: Model) -> object:
    """Nothing at zero, so that every gradient is there."""
    params = model.init(KEY)
    flat, back = trees.flatten(params)
    return back(flat + 0.1 * jax.random.normal(jax.random.key(2), flat.shape))


@cache
def clipped_and_exact(name: str) -> Callable[..., Any]:
    """Sums of clipped and of exact gradients, by book-keeping and row by row, in one compiled program."""
    model, _, _ = MODELS[name]
    keeping = clipping.gradients(model)
    assert keeping.strategy == "book-keeping"
    plain = clipping.rows(lambda p, example: jax.grad(model.loss)(p, *example))

    def sums(params: Any, examples: Any, weights: jax.Array, clip: jax.Array) -> Any:
        return [
            (way.clipped(params, examples, weights, clip), way.exact(params, examples, weights))
            for way in (keeping, plain)
        ]

    return jax.jit(sums)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clip", [pytest.param(0.05, marks=pytest.mark.slow), 1.0, 100.0])
def test_book_keeping_equals_clipping_row_by_row(name: str, clip: float) -> None:
    model, shape, outcome = MODELS[name]
    weights = (jnp.arange(9) % 3 > 0).astype(jnp.float32)
    (found, exact), (expected, plainly) = clipped_and_exact(name)(
        params_of(model), batch(shape, outcome), weights, jnp.float32(clip)
    )
    scale = float(jnp.sqrt(trees.squared_norm(expected)))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * scale)
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(plainly), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("together", [0, 10**6])
@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_batch_is_the_sum_of_its_rows(
    name: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where large weights have a product of their own, and for many clients at once."""
    monkeypatch.setattr(batching, "MOST_TOGETHER", together)
    model, shape, outcome = MODELS[name]
    params, (x, y) = params_of(model), batch(shape, outcome)
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)
    weights = (jnp.arange(9) % 3 > 0).astype(jnp.float32)
    found = jax.jit(jax.vmap(lambda params: clipping.gradients(model).exact(params, (x, y), weights)))(two)
    rows = jax.jit(jax.vmap(lambda params: jax.vmap(lambda x, y: jax.grad(model.loss)(params, x, y))(x, y)))(two)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(rows), strict=True):
        np.testing.assert_allclose(a, jnp.einsum("n,cn...->c...", weights, b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_not_finite_counts_as_nothing(name: str) -> None:
    model, shape, outcome = MODELS[name]
    params, (x, y) = params_of(model), batch(shape, outcome)
    ones, clip = jnp.ones(9), jnp.float32(1)
    sums = clipped_and_exact(name)
    (without, _), _ = sums(params, (x, y), ones.at[4].set(0), clip)
    for value in (jnp.nan, jnp.inf):
        for found, _ in sums(params, (x.at[4].set(value), y), ones, clip):
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(without), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)


def test_convolutions_agree_with_lax() -> None:
    for padding in ("VALID", "SAME"):
        layer = models.Conv(2, 3, 3, padding)
        params = params_of_layer(layer)
        x = jax.random.normal(KEY, (7, 8, 2))
        kernel = params["weights"].reshape(3, 3, 2, 3)
        expected = jax.lax.conv_general_dilated(
            x[None], kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )[0]
        bias = jnp.broadcast_to(params["bias"], expected.shape)
        np.testing.assert_allclose(layer.apply(params, x), expected + bias, rtol=1e-4, atol=1e-5)


def params_of_layer(layer: models.Conv) -> dict[str, jax.Array]:
    params = layer.init(KEY)
    return {**params, "bias": jnp.arange(3, dtype=jnp.float32)}


def test_pooling_cuts_the_remainder() -> None:
    x = jnp.arange(25.0).reshape(5, 5, 1)
    np.testing.assert_array_equal(models.MaxPool(2).apply({}, x)[..., 0], [[6, 8], [16, 18]])


def test_losses_are_the_textbook_ones() -> None:
    logits = jnp.array([1.0, -2.0, 0.5])
    assert outcomes.class_loss(logits, jnp.int32(2)) == pytest.approx(
        -np.log(np.exp(0.5) / np.exp(logits).sum()), rel=1e-5
    )
    p = 1 / (1 + np.exp(-0.7))
    assert outcomes.binary_loss(jnp.float32(0.7), jnp.int32(1)) == pytest.approx(-np.log(p), rel=1e-5)
    assert outcomes.binary_loss(jnp.float32(0.7), jnp.int32(0)) == pytest.approx(-np.log(1 - p), rel=1e-5)
    assert outcomes.squared_error(jnp.float32(3), jnp.float32(1)) == 2


def test_bring_your_own_model_is_clipped_row_by_row() -> None:
    own = models.from_functions(lambda key: jnp.zeros(3), lambda w, x: jnp.tanh(w @ x), "number")
    assert clipping.gradients(own).strategy == "rows"
    with pytest.raises(ValueError, match="outcome='ranks'"):
        models.from_functions(lambda key: 0, lambda w, x: x, "ranks")


def test_named_networks_have_the_expected_sizes() -> None:
    sizes = {name: trees.size(jax.eval_shape(m.init, KEY)) for name, (m, _, _) in MODELS.items()}
    assert sizes["linear"] == 7
    assert sizes["softmax"] == 28
    assert trees.size(jax.eval_shape(models.cnn(28, 10).init, KEY)) == 160 + 16 * 9 * 32 + 32 + 25 * 32 * 10 + 10


@pytest.mark.parametrize(("name", "size"), [("cnn_paper", 115_646), ("cnn_leaf", 1_690_046)])
def test_networks_of_the_literature(name: str, size: int) -> None:
    model = build_model(ModelChoice(name), (28, 28, 1), "classes", 62)
    assert trees.size(jax.eval_shape(model.init, KEY)) == size
    image = jax.ShapeDtypeStruct((28, 28, 1), jnp.float32)
    assert jax.eval_shape(model.predict, jax.eval_shape(model.init, KEY), image).shape == (62,)


@pytest.mark.parametrize(
    ("name", "outcome"), [("linear", "number"), ("logistic", "binary"), ("softmax", "classes"), ("mlp", "classes")]
)
def test_models_of_vectors_take_images_too(name: str, outcome: str) -> None:
    model, flat = (build_model(ModelChoice(name), shape, outcome, 4) for shape in ((3, 2, 1), (6,)))
    params = params_of(flat)
    x = jax.random.normal(KEY, (3, 2, 1))
    np.testing.assert_array_equal(model.predict(({}, *params), x), flat.predict(params, x.reshape(-1)))  # type: ignore[misc]


def test_a_model_that_does_not_fit_says_so() -> None:
    with pytest.raises(ConfigError, match=r"'cnn_paper' needs square images .* shape \(28, 14, 1\)"):
        build_model(ModelChoice("cnn_paper"), (28, 14, 1), "classes", 62)
    with pytest.raises(ConfigError, match=r"cnn_paper.*leave nothing of these images"):
        build_model(ModelChoice("cnn_paper"), (8, 8, 1), "classes", 62)
    with pytest.raises(ConfigError, match="'cnn_small' predicts classes, but the data holds number"):
        build_model(ModelChoice("cnn_small"), (8, 8, 1), "number", 0)
    with pytest.raises(ConfigError, match=r"'forest' is not one of linear, .*cnn_small"):
        build_model(ModelChoice("forest"), (3,), "number", 0)
