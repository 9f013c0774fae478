"""Models as lists of layers, each a pair of functions on one example.

>>> import jax
>>> model = linear(3)
>>> params = model.init(jax.random.key(0))
>>> model.predict(params, jax.numpy.ones(3)).shape
()
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk.outcomes import OUTCOMES, head, loss_at
from kinfolk.types import Model, Params, Tree


@dataclass(frozen=True)
class Dense:
    """A layer of weights and a bias."""

    inputs: int
    """Values of an example that come in."""
    outputs: int
    """Values that go out."""
    start: str = "scaled"
    """`scaled`: normal with variance 1/inputs; `zeros`: what a convex model starts from."""

    def init(self, key: Array) -> Params:
        """Weights to begin with, from a random `key`; no data are looked at."""
        shape = (self.inputs, self.outputs)
        if self.start == "zeros":
            weights = jnp.zeros(shape, jnp.float32)
        else:
            weights = jax.random.normal(key, shape, jnp.float32) / jnp.sqrt(jnp.float32(self.inputs))
        return {"weights": weights, "bias": jnp.zeros(self.outputs, jnp.float32)}

    def apply(self, params: Params, x: Array) -> Array:
        """The layer's output for one example `x`, with weights `params`."""
        out = x @ params["weights"]
        return out + jnp.broadcast_to(params["bias"], out.shape)


@dataclass(frozen=True)
class Sparse:
    """A dense layer on a sparse example: `indices` and `values` of its entries. Only the weights they name are read.

    Equal indices add up, and padding has value 0.
    """

    inputs: int
    """Features, most of which are 0 in an example."""
    outputs: int
    """Values that go out."""
    start: str = "zeros"
    """As for `Dense`."""

    def init(self, key: Array) -> Params:
        """Weights to begin with, from a random `key`; no data are looked at."""
        return Dense(self.inputs, self.outputs, self.start).init(key)

    def places(self, x: Tree) -> Array:
        """The example's indices, those that are out of range moved to the border.

        `x`: one example, as `indices` and `values`.
        """
        return jnp.clip(x["indices"], 0, self.inputs - 1)

    def apply(self, params: Params, x: Tree) -> Array:
        """The layer's output for one example `x`, with weights `params`."""
        return x["values"] @ params["weights"][self.places(x)] + params["bias"]


@dataclass(frozen=True)
class Conv:
    """A convolution as patches and one matrix product: `lax.conv` inside loops is far slower on CPU."""

    inputs: int
    """Channels of the image that come in."""
    outputs: int
    """Channels that go out."""
    width: int
    """Width of the square kernel, in pixels."""
    padding: str = "VALID"
    """`VALID` (none) or `SAME` (the image keeps its size)."""

    def init(self, key: Array) -> Params:
        """Weights to begin with, from a random `key`; no data are looked at."""
        fan_in = self.width * self.width * self.inputs
        weights = jax.random.normal(key, (fan_in, self.outputs), jnp.float32) / jnp.sqrt(jnp.float32(fan_in))
        return {"weights": weights, "bias": jnp.zeros(self.outputs, jnp.float32)}

    def patches(self, x: Array) -> Array:
        """All patches of an image of shape (height, width, channels), as rows of width * width * channels values.

        `x`: the image.
        """
        if self.padding == "SAME":
            before = (self.width - 1) // 2
            x = jnp.pad(x, ((before, self.width - 1 - before),) * 2 + ((0, 0),))
        height, breadth = (side - self.width + 1 for side in x.shape[:2])
        shifted = [x[i : i + height, j : j + breadth] for i in range(self.width) for j in range(self.width)]
        return jnp.concatenate(shifted, axis=-1)

    def apply(self, params: Params, x: Array) -> Array:
        """The layer's output for one example `x`, with weights `params`."""
        out = self.patches(x) @ params["weights"]
        return out + jnp.broadcast_to(params["bias"], out.shape)


@dataclass(frozen=True)
class Relu:
    """Negative values become 0."""

    def init(self, key: Array) -> Params:
        """Nothing: this layer has no weights, and leaves its `key` unused."""
        return {}

    def apply(self, params: Params, x: Array) -> Array:
        """The layer's output for one example `x`, with weights `params`."""
        return jnp.maximum(x, 0)


@dataclass(frozen=True)
class MaxPool:
    """Largest value of each `width` x `width` tile; a remainder at the border is cut off."""

    width: int = 2

    def init(self, key: Array) -> Params:
        """Nothing: this layer has no weights, and leaves its `key` unused."""
        return {}

    def apply(self, params: Params, x: Array) -> Array:
        """The layer's output for one example `x`, with weights `params`."""
        rows, columns = (side // self.width for side in x.shape[:2])
        x = x[: rows * self.width, : columns * self.width]
        return x.reshape(rows, self.width, columns, self.width, x.shape[2]).max(axis=(1, 3))


@dataclass(frozen=True)
class Flatten:
    """An image as one long row of values."""

    def init(self, key: Array) -> Params:
        """Nothing: this layer has no weights, and leaves its `key` unused."""
        return {}

    def apply(self, params: Params, x: Array) -> Array:
        """The layer's output for one example `x`, with weights `params`."""
        return x.reshape(-1)


@dataclass(frozen=True)
class Baseline:
    """One score becomes a logit for each interval or level: the score plus the interval's own bias.

    So features shift the odds of all intervals alike (proportional odds), and a model has one weight per feature.
    """

    outputs: int
    """Intervals, or levels but the last."""
    start: str = "rare"
    """`rare`: at first half of all are left after the last interval; `even`: all levels are equally likely."""

    def init(self, key: Array) -> Params:
        """Biases to begin with; no data are looked at, and the `key` stays unused."""
        left = jnp.arange(self.outputs, 0, -1, dtype=jnp.float32)
        chance = 1 - 0.5 ** (1 / left[:1]) if self.start == "rare" else 1 / (1 + left)
        return {"bias": jnp.broadcast_to(jnp.log(chance / (1 - chance)), (self.outputs,))}

    def apply(self, params: Params, x: Array) -> Array:
        """The layer's output for one example `x`, a single score, with biases `params`."""
        return x + params["bias"]


Layer = Dense | Sparse | Conv | Relu | MaxPool | Flatten | Baseline


def from_functions(init: Callable[[Array], Params], apply: Callable[[Params, Tree], Array], outcome: str) -> Model:
    """Bring your own `init(key)` and `apply(params, x)`, both for one example.

    `apply` returns a scalar for outcomes `number`, `binary` (a logit) and `count` (the logarithm of a rate), else a
    vector of logits: of classes, of labels, of intervals (`survival`), of levels but the last (`ordinal`).

    `outcome`: one of these; it decides the loss.
    """
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome={outcome!r} is not one of {sorted(OUTCOMES)}")
    loss = OUTCOMES[outcome].loss
    return Model(init, lambda params, x, y: loss(apply(params, x), y), apply, outcome)


@lru_cache
def sequential(layers: tuple[Layer, ...], outcome: str) -> Model:
    """A model that applies its layers in order; the parameters are a tuple with one entry per layer.

    Equal layers give the same object, so that a program compiled for one is found again for the other.

    `layers`: in order. `outcome`: a key of `outcomes.OUTCOMES`.
    """

    def init(key: Array) -> Params:
        return tuple(layer.init(k) for layer, k in zip(layers, jax.random.split(key, len(layers)), strict=True))

    def apply(params: Params, x: Tree) -> Array:
        for layer, own in zip(layers, params, strict=True):
            x = layer.apply(own, x)
        return head(outcome, x)

    model = from_functions(init, apply, outcome)
    return replace(model, layers=layers, output_loss=lambda output, y: loss_at(outcome, output, y))


def closing(inputs: int, outputs: int, outcome: str, start: str = "zeros") -> tuple[Layer, ...]:
    """The last layers of a model: dense, and for intervals or levels one score with their biases.

    `inputs`: values that come in. `outputs`: how many the model has. `outcome`: a key of `OUTCOMES`. `start`: as for
    `Dense`.
    """
    if not OUTCOMES[outcome].course:
        return (Dense(inputs, outputs, start),)
    return Dense(inputs, 1, start), Baseline(outputs, "even" if outcome == "ordinal" else "rare")


def generalized_linear(features: int, outcome: str, classes: int = 0, sparse: bool = False) -> Model:
    """The linear model for an outcome: linear, logistic or softmax regression, Poisson's, discrete-time hazards.

    `features`: numbers of one example. `outcome`: a key of `OUTCOMES`. `classes`: how many classes, labels, levels or
    intervals there are. `sparse`: for sparse rows.
    """
    layers = closing(features, OUTCOMES[outcome].outputs(classes), outcome)
    if sparse:
        layers = (Sparse(features, layers[0].outputs), *layers[1:])  # type: ignore[union-attr]
    return sequential(layers, outcome)


def linear(features: int) -> Model:
    """Linear regression on `features` numbers, with a bias."""
    return generalized_linear(features, "number")


def logistic(features: int) -> Model:
    """Logistic regression on `features` numbers, for labels 0 and 1."""
    return generalized_linear(features, "binary")


def softmax(features: int, classes: int) -> Model:
    """Logistic regression on `features` numbers, for `classes` classes."""
    return generalized_linear(features, "classes", classes)


def mlp(features: int, outputs: int, hidden: tuple[int, ...] = (64,), outcome: str = "classes") -> Model:
    """Dense layers with ReLU between them.

    `features`: numbers of one example. `outputs`: values at the end: the classes, the intervals, or 1. `hidden`: widths
    of the layers between. `outcome`: a key of `OUTCOMES`.
    """
    widths = (features, *hidden)
    layers: list[Layer] = []
    for before, after in itertools.pairwise(widths):
        layers += [Dense(before, after), Relu()]
    return sequential((*layers, *closing(widths[-1], outputs, outcome, "scaled")), outcome)


def cnn(
    side: int,
    classes: int,
    channels: tuple[int, ...] = (16, 32),
    width: int = 3,
    inputs: int = 1,
    padding: str = "VALID",
    hidden: tuple[int, ...] = (),
) -> Model:
    """Convolutions of `width`, each followed by 2x2 pooling, then dense layers, on square images.

    `side`: of the image, in pixels. `classes`: to tell apart. `channels`: of each convolution. `inputs`: channels of
    the image. `padding`: `VALID` or `SAME`. `hidden`: widths of dense layers before the last.
    """
    layers: list[Layer] = []
    for outputs in channels:
        layers += [Conv(inputs, outputs, width, padding), Relu(), MaxPool(2)]
        inputs, side = outputs, (side if padding == "SAME" else side - width + 1) // 2
    if side < 1:
        raise ValueError(f"{len(channels)} convolutions of width={width} leave nothing of these images: use fewer")
    dense = mlp(side * side * inputs, classes, hidden)
    return sequential((*layers, Flatten(), *dense.layers), "classes")


def cnn_paper(side: int, classes: int, inputs: int = 1) -> Model:
    """What Hu, Wu and Smith train on FEMNIST: 115 646 weights there.

    `side`: of the image, in pixels. `classes`: to tell apart. `inputs`: channels of the image.
    """
    return cnn(side, classes, (32, 64), 5, inputs)


def cnn_leaf(side: int, classes: int, inputs: int = 1) -> Model:
    """LEAF's network for FEMNIST: padded convolutions and 512 hidden units, 1 690 046 weights there.

    `side`: of the image, in pixels. `classes`: to tell apart. `inputs`: channels of the image.
    """
    return cnn(side, classes, (32, 64), 5, inputs, "SAME", (512,))


def cnn_small(side: int, classes: int, inputs: int = 1) -> Model:
    """A network that compiles and runs in no time, for tests.

    `side`: of the image, in pixels. `classes`: to tell apart. `inputs`: channels of the image.
    """
    return cnn(side, classes, (4, 8), 3, inputs)


NETWORKS = {"cnn_paper": cnn_paper, "cnn_leaf": cnn_leaf, "cnn_small": cnn_small}
"""Networks with fixed widths, by name: functions of an image's side, the classes and the image's channels."""


def error(model: Model, output: Array, y: Array) -> Array:
    """One example's error, as it is reported: squared for numbers, 0 or 1 for labels, and so on (`OUTCOMES`).

    `model`: it decides which error. `output`: its prediction. `y`: the target.
    """
    return OUTCOMES[model.outcome].error(output, y)
