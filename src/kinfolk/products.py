"""Products of a batch with large weights, in the forms that a CPU computes quickly; gradients included.

XLA has a fast product for matrices that lie in memory as they are multiplied, so transposes are copied first. And a CPU
spends more time on what it writes down than on multiplying: a convolution's patches would be `width` times what
`convolved` writes.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk.models import Conv
from kinfolk.types import Params


@jax.custom_vjp
def product(x: Array, weights: Array) -> Array:
    """A batch of examples times large weights; the gradient of these is taken from a transposed copy of the examples.

    `x`: one row per example. `weights`: one column per output.
    """
    return x @ weights


def _product_forward(x: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ weights, (x, weights)


def _product_backward(saved: tuple[Array, Array], outputs: Array) -> tuple[Array, Array]:
    x, weights = saved
    return outputs @ weights.T, jax.lax.optimization_barrier(x.T) @ outputs


product.defvjp(_product_forward, _product_backward)


def fewer_values(layer: Conv) -> bool:
    """Whether `convolved` writes fewer values for each pixel than patches would have.

    `layer`: the convolution.
    """
    return layer.inputs + layer.outputs < layer.width * layer.inputs


def convolved(layer: Conv, params: Params, x: Array) -> Array:
    """The layer's output for a batch of images, as by `layer.apply` for each.

    Patches are one pixel high: every row of the image is multiplied with all rows of the kernel at once, and what
    belongs to one row of the output is added up.

    `layer`: the convolution. `params`: its weights. `x`: images of shape (examples, height, width, channels).
    """
    width, height = layer.width, x.shape[1]
    before, after = ((width - 1) // 2, width // 2) if layer.padding == "SAME" else (0, 0)
    padded = jnp.pad(x, ((0, 0), (0, 0), (before, after), (0, 0)))
    breadth = padded.shape[2] - width + 1
    strips = jnp.concatenate([padded[:, :, j : j + breadth] for j in range(width)], axis=-1)
    kernel = params["weights"].reshape(width, width * layer.inputs, layer.outputs).transpose(1, 0, 2)
    each = product(strips.reshape(-1, strips.shape[-1]), kernel.reshape(strips.shape[-1], -1))
    each = each.reshape(*strips.shape[:-1], width, layer.outputs)
    out: Array = _added_up(before, height + before + after - width + 1, each)
    return out + jnp.broadcast_to(params["bias"], out.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _added_up(before: int, height: int, each: Array) -> Array:
    """Row r of the output, of so many: the sum over kernel rows i of `each[:, r + i - before, :, i]`, where that is."""
    total = jnp.zeros((), each.dtype)
    for i in range(each.shape[3]):
        first, last = max(0, before - i), min(height, each.shape[1] + before - i)
        part = each[:, first + i - before : last + i - before, :, i]
        total = total + jnp.pad(part, ((0, 0), (first, height - last), (0, 0), (0, 0)))
    return jax.lax.optimization_barrier(total)  # else all that reads it would add up again


def _added_up_forward(before: int, height: int, each: Array) -> tuple[Array, Array]:
    return _added_up(before, height, each), each[:0]


def _added_up_backward(before: int, height: int, none: Array, outputs: Array) -> tuple[Array]:
    rows, width = none.shape[1], none.shape[3]
    padded = jnp.pad(outputs, ((0, 0), (width - 1 - before, rows - height + before), (0, 0), (0, 0)))
    return (jnp.stack([padded[:, width - 1 - i : width - 1 - i + rows] for i in range(width)], axis=3),)


_added_up.defvjp(_added_up_forward, _added_up_backward)
