"""What a model predicts: for every kind of outcome the loss, the error that is reported, and the best guess.

A time until an event and a level on an ordered scale are one thing: somebody goes through intervals (levels) one by
one, and a model says, for each, how likely it is that this is the last. Such a *course* is one number per row: twice
the intervals that were survived, plus 1 if the event came in the next. So a patient stays one row, and one unit, and
its loss is the sum over the intervals in which it was at risk.

>>> float(OUTCOMES["survival"].loss(jnp.zeros(3), jnp.int32(5)) / jnp.log(2))  # two survived, the event in the third
3.0
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

STRAIGHT = 5.0
"""From this logarithm of a rate on, the rate grows along a straight line: no step can throw a model out of floats."""


def squared_error(output: Array, y: Array) -> Array:
    """Half the squared difference of `output` and target `y`."""
    return 0.5 * jnp.square(output - y)


def binary_loss(output: Array, y: Array) -> Array:
    """Cross-entropy of a logit against a label in {0, 1}.

    `output`: the logit. `y`: the label.
    """
    return jax.nn.softplus(output) - y.astype(output.dtype) * output


def class_loss(output: Array, y: Array) -> Array:
    """Cross-entropy of logits against a class number.

    `output`: a vector of logits. `y`: the number of the right class.
    """
    return jax.nn.logsumexp(output) - output[y]


def rate(output: Array) -> Array:
    """The rate that a count is expected to have, from its logarithm; a straight line where that is large.

    `output`: the logarithm.
    """
    return jnp.exp(jnp.minimum(output, STRAIGHT)) * (1 + jnp.maximum(output - STRAIGHT, 0))


def count_loss(output: Array, y: Array) -> Array:
    """Poisson's: the rate minus `y` times its logarithm (up to what does not depend on the model).

    `output`: the logarithm of the rate. `y`: the count, in whichever unit; a fraction of one will do.
    """
    low = jnp.minimum(output, STRAIGHT)
    above = jnp.maximum(output - STRAIGHT, 0)
    return jnp.exp(low) + math.exp(STRAIGHT) * (above + jnp.square(above) / 2) - y.astype(output.dtype) * output


def course_loss(output: Array, y: Array) -> Array:
    """Cross-entropy summed over the intervals at risk.

    `output`: for each interval the logit of the chance that the event comes in it, if it did not come before. `y`:
    twice the intervals survived, plus 1 if the event came in the next.
    """
    survived, event = y // 2, y % 2
    place = jnp.arange(output.shape[-1], dtype=y.dtype)
    at_risk = place < survived + event
    came = (place == survived) & (event == 1)
    return jnp.where(at_risk, jax.nn.softplus(output) - came.astype(output.dtype) * output, 0).sum()


def level_loss(output: Array, y: Array) -> Array:
    """The loss of a level on an ordered scale: of the course that ends there.

    `output`: for each level but the last the logit of the chance that it is the one, if no lower one is. `y`: which it
    was.
    """
    return course_loss(output, level_course(y, output.shape[-1]))


def level_course(y: Array, last: int) -> Array:
    """A level `y` as a course: all lower ones were survived; the highest, whose number is `last`, has no interval."""
    return 2 * y + (y < last).astype(y.dtype)


def several_losses(output: Array, y: Array) -> Array:
    """Cross-entropy of each label, summed and divided by the root of how many there are.

    So a gradient is about as long as that of one label, and one clip fits all.

    `output`: a logit for each label. `y`: 0 or 1 for each.
    """
    return binary_loss(output, y).sum() / math.sqrt(output.shape[-1])


def remaining(output: Array) -> Array:
    """The logarithm of the chance that the event has not come by the end of each interval.

    `output`: the logits of the intervals.
    """
    return -jnp.cumsum(jax.nn.softplus(output))


def log_odds_of_event(output: Array) -> Array:
    """The log odds that the event comes by the end of the last interval.

    `output`: the logits of the intervals.
    """
    left = jnp.minimum(remaining(output)[-1], -1e-7)
    return jnp.log(-jnp.expm1(left)) - left


def median_level(output: Array) -> Array:
    """The level that is as likely to be exceeded as not: what the mean of distances asks for.

    `output`: the logits of the levels but the last.
    """
    return (remaining(output) > math.log(0.5)).sum().astype(jnp.int32)


def _wrong(guess: Array, y: Array) -> Array:
    return (guess.astype(jnp.int32) != y.astype(jnp.int32)).astype(jnp.float32)


def _deviance(output: Array, y: Array) -> Array:
    y = y.astype(output.dtype)
    best = jnp.where(y > 0, y - y * jnp.log(jnp.maximum(y, 1e-30)), 0)
    return 2 * (count_loss(output, y) - best)


@dataclass(frozen=True)
class Outcome:
    """One kind of outcome, as functions of a model's output for one example."""

    loss: Callable[[Array, Array], Array]
    """Of output and target: what is minimised."""
    error: Callable[[Array, Array], Array]
    """Of output and target: what is reported."""
    measured: str
    """What that error is called."""
    model: str
    """The name of the linear model for it."""
    outputs: Callable[[int], int]
    """How many outputs a model has, from the number of classes, levels, intervals or labels."""
    guess: Callable[[Array], Array] | None = None
    """The label that an output amounts to, where there is one."""
    scalar: bool = False
    """Whether a model's output is a single number."""
    course: bool = False
    """Whether outputs belong to intervals that are gone through one by one."""


def _one(classes: int) -> int:
    return 1


def _each(classes: int) -> int:
    return classes


def _yes(output: Array) -> Array:
    return (output > 0).astype(jnp.int32)


def _most_likely(output: Array) -> Array:
    return jnp.argmax(output).astype(jnp.int32)


OUTCOMES: dict[str, Outcome] = {
    "number": Outcome(
        squared_error, lambda output, y: jnp.square(output - y), "squared error", "linear", _one, scalar=True
    ),
    "binary": Outcome(
        binary_loss, lambda o, y: _wrong(_yes(o), y), "share of wrong labels", "logistic", _one, _yes, scalar=True
    ),
    "classes": Outcome(
        class_loss, lambda o, y: _wrong(_most_likely(o), y), "share of wrong labels", "softmax", _each, _most_likely
    ),
    "survival": Outcome(course_loss, course_loss, "negative log likelihood", "hazard", _each, course=True),
    "count": Outcome(count_loss, _deviance, "Poisson deviance", "poisson", _one, scalar=True),
    "ordinal": Outcome(
        level_loss,
        lambda o, y: jnp.abs(median_level(o) - y).astype(jnp.float32),
        "levels that the guess is off",
        "ordinal",
        lambda levels: levels - 1,
        median_level,
        course=True,
    ),
    "labels": Outcome(
        several_losses,
        lambda o, y: (_yes(o) != y).astype(jnp.float32).mean(),
        "share of wrong labels",
        "multilabel",
        _each,
    ),
}
"""All kinds, by name."""


def head(outcome: str, output: Array) -> Array:
    """What a model returns, from the output of its last layer.

    `outcome`: a kind. `output`: a vector.
    """
    return output[0] if OUTCOMES[outcome].scalar else output


def loss_at(outcome: str, output: Array, y: Array) -> Array:
    """The loss as a function of the last layer's output.

    `outcome`: a kind. `output`: a vector. `y`: the target.
    """
    return OUTCOMES[outcome].loss(head(outcome, output), y)
