"""What a mechanism sums, and how: named strategies for a sum of clipped contributions.

`rows` computes every unit's contribution and clips it. `gradients` picks, for models made of layers, the
book-keeping strategy: it needs the norms of the per-example gradients but not the gradients themselves, so it costs
little more than ordinary training. Both give the same sum, and each has its own sensitivity test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.models import Conv, Dense
from kinfolk.types import Model, Params, Tree

GRID_STEPS = 2**16
"""In a release run a clipped contribution is a vector of whole multiples of clip / GRID_STEPS."""


@dataclass(frozen=True)
class Sum:
    """A sum over units, with and without clipping. `weights` is 0 or 1 for each unit."""

    strategy: str
    exact: Callable[[Tree, Tree, Array], Tree]
    """`exact(public, units, weights)`"""
    clipped: Callable[[Tree, Tree, Array, Array], Tree]
    """`clipped(public, units, weights, clip)`"""
    on_grid: Callable[[Tree, Tree, Array, Array], Tree]
    """Like `clipped`, as whole multiples of clip^degree / GRID_STEPS, returned as int32."""
    degree: int = 1
    """One unit moves the sum by at most clip^degree: 2 for sums of products of a clipped vector with itself."""
    within_l1: bool = False
    """Whether that bound also holds for the sum of absolute values."""


def rows(contribution: Callable[[Tree, Tree], Tree]) -> Sum:
    """The plain strategy: `contribution(public, unit)` for every unit, clipped as one long vector, then summed."""

    def summed(public: Tree, units: Tree, finish: Callable[[Tree, Array], Tree], weights: Array) -> Tree:
        each = jax.vmap(lambda unit, weight: finish(contribution(public, unit), weight))(units, weights)
        return jax.tree.map(lambda leaf: leaf.sum(axis=0), each)

    return Sum(
        "rows",
        lambda public, units, weights: summed(public, units, lambda value, weight: trees.scale(weight, value), weights),
        lambda public, units, weights, clip: summed(public, units, lambda v, w: clip_one(v, w, clip), weights),
        lambda public, units, weights, clip: summed(
            public, units, lambda v, w: to_grid(clip_one(v, w, clip), clip), weights
        ),
    )


def clip_one(contribution: Tree, weight: Array, clip: Array) -> Tree:
    """One unit's contribution times its weight, at most `clip` long; one that is not finite counts as zero.

    Norms are taken in float32, of values divided by the largest, whatever type the contribution has.
    """
    contribution = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), contribution)
    leaves = jax.tree.leaves(contribution)
    scale = _scale(jnp.stack([jnp.float32(0), *(jnp.max(jnp.abs(leaf), initial=0) for leaf in leaves)]).max())
    norm = scale * jnp.sqrt(trees.squared_norm(jax.tree.map(lambda leaf: leaf / scale, contribution)))
    factor = weight * clip_factor(norm, clip)
    return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), factor * leaf, 0), contribution)


def _scale(largest: Array) -> Array:
    """What to divide values by before they are squared, so that squares of small ones do not vanish.

    Never beyond 1e30 either: XLA multiplies by the reciprocal, and that of 1e38 is 0.
    """
    return jnp.clip(largest, 1e-30, 1e30)


def clip_factor(norm: Array, clip: Array) -> Array:
    """What to multiply a vector of this norm with: min(1, clip / norm), and 0 when the norm is not finite."""
    return jnp.where(jnp.isfinite(norm), jnp.minimum(1, clip / jnp.maximum(norm, 1e-30)), 0)


def to_grid(tree: Tree, clip: Array) -> Tree:
    """Whole multiples of clip / GRID_STEPS, rounded towards zero, so that no norm grows.

    The factor just below 1 covers the float32 rounding of the norm.
    """
    return jax.tree.map(lambda leaf: jnp.trunc(leaf * ((1 - 2**-14) * GRID_STEPS / clip)).astype(jnp.int32), tree)


def gradients(model: Model) -> Sum:
    """The sum of loss gradients at the public weights over examples `(x, y)`."""
    plain = rows(lambda params, example: jax.grad(model.loss)(params, *example))

    def exact(params: Params, examples: Tree, weights: Array) -> Tree:
        def total(params: Params) -> Array:
            losses = jax.vmap(lambda example: model.loss(params, *example))(examples)
            return jnp.sum(jnp.where(weights > 0, losses, 0))

        return jax.grad(total)(params)

    if not model.layers:
        return Sum("rows", exact, plain.clipped, plain.on_grid)
    return Sum("book-keeping", exact, lambda *args: _bookkeeping(model, *args), plain.on_grid)


def _bookkeeping(model: Model, params: Params, examples: Tree, weights: Array, clip: Array) -> Tree:
    """Clipped gradients by layers: gradients at each layer's output give every norm, then one weighted sum.

    For a dense layer with input a and output gradient g the gradient is the outer product of a and g, of squared norm
    |a|^2 |g|^2 (the bias adds |g|^2). A convolution is a dense layer on patches, summed over positions.
    """

    def loss_of_offsets(offsets: Tree, x: Tree, y: Array) -> tuple[Array, Tree]:
        inputs = []
        out = x
        for layer, own, offset in zip(model.layers, params, offsets, strict=True):
            inputs.append(layer.patches(out) if isinstance(layer, Conv) else out if isinstance(layer, Dense) else ())
            out = layer.apply(own, out)
            if isinstance(layer, Dense | Conv):
                out = out + offset
        return model.output_loss(out, y), tuple(inputs)

    def offsets_for(x: Tree) -> Tree:
        shapes, out = [], x
        for layer, own in zip(model.layers, params, strict=True):
            out = jax.eval_shape(layer.apply, own, out)
            shapes.append(jnp.zeros(out.shape, out.dtype) if isinstance(layer, Dense | Conv) else ())
        return tuple(shapes)

    x, y = examples
    zero = offsets_for(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), x))
    outputs, inputs = jax.vmap(jax.grad(loss_of_offsets, has_aux=True), in_axes=(None, 0, 0))(zero, x, y)
    outputs, inputs = (
        jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, jnp.nan), t) for t in (outputs, inputs)
    )
    squared_norms = [
        jnp.square(_layer_norm(layer, a, g))
        for layer, a, g in zip(model.layers, inputs, outputs, strict=True)
        if isinstance(layer, Dense | Conv)
    ]
    squared = sum(squared_norms, jnp.zeros_like(weights))
    factors = weights * clip_factor(jnp.sqrt(squared), clip)

    def weighted(layer: object, a: Tree, g: Tree) -> Tree:
        if not isinstance(layer, Dense | Conv):
            return {}
        a, g = (leaf.reshape(leaf.shape[0], -1, leaf.shape[-1]) for leaf in (a, g))
        kept = (factors > 0)[:, None, None]
        a, g = jnp.where(kept, a, 0), jnp.where(kept, factors[:, None, None] * g, 0)
        return {"weights": jnp.einsum("npi,npo->io", a, g), "bias": g.sum((0, 1))}

    return tuple(weighted(*parts) for parts in zip(model.layers, inputs, outputs, strict=True))


def _layer_norm(layer: Dense | Conv, inputs: Array, outputs: Array) -> Array:
    """Norm of one layer's gradient for every example, from its inputs and the gradients at its outputs.

    Output gradients are scaled by their largest value first: squares of small ones are 0 in float32, however large the
    inputs they are multiplied with.
    """
    a, g = (leaf.reshape(leaf.shape[0], -1, leaf.shape[-1]) for leaf in (inputs, outputs))
    scale = _scale(jnp.abs(g).max((1, 2)))
    g = g / scale[:, None, None]
    if isinstance(layer, Dense):
        squared = (1 + jnp.square(a).sum((1, 2))) * jnp.square(g).sum((1, 2))
    else:
        squared = jnp.square(jnp.einsum("npi,npo->nio", a, g)).sum((1, 2)) + jnp.square(g.sum(1)).sum(1)
    return scale * jnp.sqrt(squared)
