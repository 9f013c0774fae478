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

from kinfolk import batching, trees
from kinfolk.models import Baseline, Conv, Dense, Layer, Sparse
from kinfolk.types import Model, Params, Tree
from kinfolk.units import Several, mean, over_rows

GRID_STEPS = 2**16
"""In a release run a clipped contribution is a vector of whole multiples of clip / GRID_STEPS."""
WEIGHTED = (Dense, Sparse, Conv, Baseline)
"""Layers that have weights."""


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
    contribution: Callable[[Tree, Tree], Tree] | None = None
    """One unit's contribution, where the strategy computes them one by one."""
    degree: int = 1
    """One unit moves the sum by at most clip^degree: 2 for sums of products of a clipped vector with itself."""
    within_l1: bool = False
    """Whether that bound also holds for the sum of absolute values."""
    devices: int = 1
    """Among how many devices units are divided."""


def rows(contribution: Callable[[Tree, Tree], Tree], devices: int = 1) -> Sum:
    """The plain strategy: `contribution(public, unit)` for every unit, clipped as one long vector, then summed.

    On the grid, where releases are made, units that coins left out are computed too: time must not tell how many.

    `devices`: among which units are divided; each sums its own, and what is released is the sum of all.
    """

    def summed(
        public: Tree, units: Tree, finish: Callable[[Tree, Array], Tree], weights: Array, skip: bool = True
    ) -> Tree:
        def one(unit: Tree, weight: Array) -> Tree:
            return finish(contribution(public, unit), weight)

        return batching.sum_of(one, units, weights, skip, devices)

    return Sum(
        "rows",
        lambda public, units, weights: summed(public, units, _if_there, weights),
        lambda public, units, weights, clip: summed(public, units, lambda v, w: clip_one(v, w, clip), weights),
        lambda public, units, weights, clip: summed(
            public, units, lambda v, w: to_grid(clip_one(v, w, clip), clip), weights, skip=False
        ),
        contribution,
        devices=devices,
    )


def _if_there(value: Tree, weight: Array) -> Tree:
    """What is left out is zero, also where it is not finite."""
    return jax.tree.map(lambda leaf: jnp.where(weight > 0, weight * leaf, 0), value)


def with_count(what: Sum) -> Sum:
    """The same sum of clipped contributions, and beside it, for each unit, +-1/2: whether it lay within the clip.

    Its arguments are `(arguments, clip, scale)`; the half is multiplied by `scale`.
    """
    assert what.contribution is not None, "counting needs contributions one by one"
    one = what.contribution

    def counted(public: Tree, unit: Tree) -> Tree:
        arguments, clip, scale = public
        value = one(arguments, unit)
        within = (norm_of(value) <= clip).astype(jnp.float32) - 0.5
        return clip_one(value, jnp.float32(1), clip), scale * within

    return rows(counted, what.devices)


def clip_one(contribution: Tree, weight: Array, clip: Array) -> Tree:
    """One unit's contribution times its weight, at most `clip` long; one that is not finite, or 1e19 times too long,
    counts as zero.

    Norms are taken in float32, of values divided by the clip: squares that vanish there are too small to matter.
    """
    contribution = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), contribution)
    unit = _scale(clip)
    norm = jnp.sqrt(batching.squared_norm(trees.scale(1 / unit, contribution)))
    factor = weight * clip_factor(norm, clip / unit)
    return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), factor * leaf, 0), contribution)


def norm_of(contribution: Tree) -> Array:
    """The norm of all leaves together."""
    leaves = [leaf.astype(jnp.float32) for leaf in jax.tree.leaves(contribution)]
    scale = _scale(jnp.stack([jnp.float32(0), *(jnp.max(jnp.abs(leaf), initial=0) for leaf in leaves)]).max())
    return scale * jnp.sqrt(batching.squared_norm([leaf / scale for leaf in leaves]))


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
    """The sum of loss gradients at the public weights over examples `(x, y)`; a person's is the mean over its rows."""
    plain = rows(lambda params, example: jax.grad(over_rows(model.loss))(params, *example))

    def exact(params: Params, examples: Tree, weights: Array) -> Tree:
        def total(params: Params) -> Array:
            return jnp.sum(jnp.where(weights > 0, batching.losses(model, params, *examples), 0))

        return jax.grad(total)(params)

    if not model.layers:
        return Sum("rows", exact, plain.clipped, plain.on_grid)

    def clipped(params: Params, examples: Tree, weights: Array, clip: Array) -> Tree:
        if isinstance(examples[0], Several) and any(isinstance(layer, Sparse) for layer in model.layers):
            return plain.clipped(params, examples, weights, clip)  # rows of a person may share entries
        return _bookkeeping(model, params, examples, weights, clip)

    return Sum("book-keeping", exact, clipped, plain.on_grid)


def _bookkeeping(model: Model, params: Params, examples: Tree, weights: Array, clip: Array) -> Tree:
    """Clipped gradients by layers: gradients at each layer's output give every norm, then one weighted sum.

    For a dense layer with input a and output gradient g the gradient is the outer product of a and g, of squared norm
    |a|^2 |g|^2 (the bias adds |g|^2). A convolution is a dense layer on patches, summed over positions, as is a dense
    layer on the rows of a matrix: such gradients are computed once per example. A person's rows are further positions:
    their gradients are summed, each with its share, before the norm is taken.
    """

    def loss_of_offsets(offsets: Tree, x: Tree, y: Array) -> tuple[Array, Tree]:
        inputs = []
        out = x
        for layer, own, offset in zip(model.layers, params, offsets, strict=True):
            inputs.append(_layer_input(layer, out))
            out = layer.apply(own, out)
            if isinstance(layer, WEIGHTED):
                out = out + offset
        return model.output_loss(out, y), tuple(inputs)

    def offsets_for(x: Tree) -> Tree:
        shapes, out = [], x
        for layer, own in zip(model.layers, params, strict=True):
            out = jax.eval_shape(layer.apply, own, out)
            shapes.append(jnp.zeros(out.shape, out.dtype) if isinstance(layer, WEIGHTED) else ())
        return tuple(shapes)

    def loss_of_unit(offsets: Tree, x: Tree, y: Array) -> tuple[Array, Tree]:
        if not isinstance(x, Several):
            return loss_of_offsets(offsets, x, y)
        each, inputs = jax.vmap(loss_of_offsets)(offsets, x.rows, y)
        return mean(each, x.shares), inputs

    x, y = examples
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), x)
    if isinstance(one, Several):
        zero = offsets_for(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), one.rows))
        zero = jax.tree.map(lambda leaf: jnp.zeros((*one.shares.shape, *leaf.shape), leaf.dtype), zero)
    else:
        zero = offsets_for(one)
    outputs, inputs = jax.vmap(jax.grad(loss_of_unit, has_aux=True), in_axes=(None, 0, 0))(zero, x, y)
    pairs = [
        (_layer_parts(layer, a, g) if isinstance(layer, WEIGHTED) else None)
        for layer, a, g in zip(model.layers, inputs, outputs, strict=True)
    ]
    squared = sum((jnp.square(parts.norm) for parts in pairs if parts), jnp.zeros_like(weights))
    factors = weights * clip_factor(jnp.sqrt(squared), clip)
    return tuple({} if parts is None else parts.weighted(factors) for parts in pairs)


@dataclass(frozen=True)
class _Parts:
    """One layer's gradients: every example's norm, and their sum with given weights."""

    norm: Array
    weighted: Callable[[Array], Tree]


def _layer_input(layer: Layer, x: Tree) -> Tree:
    """What a layer's weights are multiplied with."""
    if isinstance(layer, Conv):
        return layer.patches(x)
    if isinstance(layer, Sparse):
        return {"places": layer.places(x), "values": x["values"]}
    return x if isinstance(layer, Dense) else ()


def _bias_parts(outputs: Array) -> _Parts:
    """Of a layer that has biases alone: what arrives at its output is their gradient, summed over a person's rows."""
    g = outputs.reshape(outputs.shape[0], -1, outputs.shape[-1]).sum(1)
    scale = _scale(jnp.abs(g).max(1))

    def weighted(factors: Array) -> Tree:
        kept = (factors > 0)[:, None]
        return {"bias": jnp.where(kept, factors[:, None] * g, 0).sum(0)}

    return _Parts(scale * jnp.sqrt(jnp.square(g / scale[:, None]).sum(1)), weighted)


def _sparse_parts(layer: Sparse, inputs: Tree, outputs: Array) -> _Parts:
    """As for a dense layer, once entries with equal indices are added up in the first of their places."""
    places, values = inputs["places"], inputs["values"]
    equal = places[:, :, None] == places[:, None, :]
    first = jnp.argmax(equal, axis=2) == jnp.arange(places.shape[1], dtype=jnp.int32)[None, :]
    a = jnp.where(first, jnp.where(equal, values[:, None, :], 0).sum(2), 0)
    scale = _scale(jnp.abs(outputs).max(1))
    g = outputs / scale[:, None]
    squared = (1 + jnp.square(a).sum(1)) * jnp.square(g).sum(1)

    def weighted(factors: Array) -> Tree:
        kept, scaled = (factors > 0)[:, None], (factors * scale)[:, None]
        own_a, own_g = jnp.where(kept, a, 0), jnp.where(kept, scaled * g, 0)
        empty = jnp.zeros((layer.inputs, layer.outputs), jnp.float32)
        return {"weights": empty.at[places].add(own_a[:, :, None] * own_g[:, None, :]), "bias": own_g.sum(0)}

    return _Parts(scale * jnp.sqrt(squared), weighted)


def _layer_parts(layer: Dense | Sparse | Conv | Baseline, inputs: Tree, outputs: Array) -> _Parts:
    """From a layer's inputs and the gradients at its outputs, for every example.

    Output gradients are scaled by their largest value first: squares of small ones are 0 in float32, however large the
    inputs they are multiplied with. The sums are taken in full float32, as the norms are: accelerators would round
    their operands otherwise. Where there are several positions, one example's gradients are smaller than its inputs, so
    they are kept; what is not finite gets a norm that is not, and then the weight 0.
    """
    if isinstance(layer, Sparse):
        return _sparse_parts(layer, inputs, outputs)
    if isinstance(layer, Baseline):
        return _bias_parts(outputs)
    a, g = (leaf.reshape(leaf.shape[0], -1, leaf.shape[-1]) for leaf in (inputs, outputs))
    scale = _scale(jnp.abs(g).max((1, 2)))
    g = g / scale[:, None, None]
    if a.shape[1] == 1:
        squared = (1 + jnp.square(a).sum((1, 2))) * jnp.square(g).sum((1, 2))

        def weighted(factors: Array) -> Tree:
            kept, scaled = (factors > 0)[:, None, None], (factors * scale)[:, None, None]
            own_a, own_g = jnp.where(kept, a, 0), jnp.where(kept, scaled * g, 0)
            total = jnp.einsum("npi,npo->io", own_a, own_g, precision="highest")
            return {"weights": total, "bias": own_g.sum((0, 1))}

    else:
        own, bias = jnp.einsum("npi,npo->nio", a, g), g.sum(1)
        squared = jnp.square(own).sum((1, 2)) + jnp.square(bias).sum(1)

        def weighted(factors: Array) -> Tree:
            kept = factors > 0
            scaled = jnp.where(kept, factors * scale, 0)
            return {
                "weights": jnp.einsum("n,nio->io", scaled, jnp.where(kept[:, None, None], own, 0), precision="highest"),
                "bias": jnp.einsum("n,no->o", scaled, jnp.where(kept[:, None], bias, 0), precision="highest"),
            }

    return _Parts(scale * jnp.sqrt(squared), weighted)
