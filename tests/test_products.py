"""Products in the forms that a CPU is quick at: the same values and gradients as the plain ones."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import batching, models
from kinfolk.models import Conv
from kinfolk.privacy import clipping
from kinfolk.products import convolved, fewer_values, product


def of(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def test_a_product_and_its_gradients() -> None:
    x, weights, back = of((3, 4)), of((4, 5), 1), of((3, 5), 2)
    for form in (product, jnp.matmul):
        out, pulled = jax.vjp(form, x, weights)
        np.testing.assert_allclose(out, x @ weights, rtol=1e-5)
        for found, right in zip(pulled(back), (back @ weights.T, x.T @ back), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("width", "side"), [(1, 3), (2, 7), (3, 9), (4, 6), (5, 5)])
def test_a_convolution_and_its_gradients(width: int, side: int, padding: str) -> None:
    """Also of images that are not square, and of a kernel that is as high as the image."""
    layer = Conv(3, 5, width, padding)
    params, x = {**layer.init(jax.random.key(1)), "bias": of((5,), 3)}, of((2, side, side + 1, 3))
    right, pulled = jax.vjp(lambda params, x: jax.vmap(partial(layer.apply, params))(x), params, x)
    found, own = jax.vjp(partial(convolved, layer), params, x)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
    back = of(right.shape, 2)
    for a, b in zip(jax.tree.leaves(own(back)), jax.tree.leaves(pulled(back)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_it_writes_less_where_channels_are_many() -> None:
    first, second = (layer for layer in models.cnn_leaf(28, 62).layers if isinstance(layer, Conv))
    assert not fewer_values(first)
    assert fewer_values(second)


def test_a_batch_is_convolved_so_where_clients_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a client's batch is that of examples side by side, which is what an accelerator computes."""
    asked: list[Conv] = []
    monkeypatch.setattr(batching, "convolved", lambda layer, *rest: asked.append(layer) or convolved(layer, *rest))
    model = models.cnn(12, 3, (8, 8), 3)
    params, x, y = model.init(jax.random.key(0)), of((4, 12, 12, 1)), jnp.array([0, 1, 2, 0])
    weights, exact = jnp.array([1.0, 1, 0, 1]), clipping.gradients(model).exact
    together = exact(params, (x, y), weights)
    assert not asked
    monkeypatch.setattr(batching, "MOST_TOGETHER", 0)
    in_turns = exact(params, (x, y), weights)
    assert asked == [Conv(8, 8, 3)]
    for a, b in zip(jax.tree.leaves(in_turns), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
