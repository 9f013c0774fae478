"""Settings for data nobody has looked at: from the level, the (public) sizes and the schema alone.

>>> automatic("example", [40] * 20, features=10, epsilon=1.0).method
'mean_regularized'
>>> automatic("example", [5000] * 20, features=10, epsilon=3.0).method
'local'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.data.tables.schema import Schema

SPREAD = 0.25
"""How much the weights of different clients are taken to differ (standard deviation, features between -1 and 1)."""
WORTH_SHARING = 0.2
"""Clients share when that is predicted to remove at least this part of their error."""
LARGEST_FULL_BATCH = 2**14
"""The most examples that one exact release can sum."""
PULLED = ("mean_regularized", "ditto", "relation_regularized")
"""Methods whose strength is that of a pull towards a mean, for which theory has a value."""
MODELS = {"number": "linear", "binary": "logistic", "classes": "softmax"}


@dataclass(frozen=True)
class Settings:
    """Local work and rounds that suit a model on scaled features."""

    rounds: int
    step_size: float
    batch_size: int | None
    clip: float = 1.0


@dataclass(frozen=True)
class Method:
    """A method and the reason for it in words."""

    method: str
    strength: float
    """The best pull towards the mean, by the same theory; for methods that pull."""
    why: str


def settings(level: str, schema: Schema, sizes: Sequence[int]) -> Settings:
    """Rounds, step and batch size.

    A step is one over the curvature that features spread evenly over their bounds would have, at most a half. With
    noise on every step, full batches and few rounds waste the least of the budget; at client level local steps are
    free, and few rounds are released.
    """
    inputs = 1 + sum(1 if column.kind != "number" else 1 / 3 for column in schema.columns)
    curvature = inputs if schema.outcome == "number" else inputs / 4
    step_size = float(f"{min(0.5, 1 / curvature):.2g}")
    if level == "example":
        return Settings(60, step_size, None if max(sizes) <= LARGEST_FULL_BATCH else 2048)
    return Settings(20 if level == "client" else 60, step_size, 32)


def automatic(
    level: str, sizes: Sequence[int], features: int, epsilon: float | None, delta: float | None = None
) -> Method:
    """The method that theory predicts to be best, from public numbers alone.

    Estimating one weight of client k from its n_k examples has variance v_k: 1/n_k from sampling and, at example level,
    `features * noise^2 / n_k^2` from noise, `noise^2 = 2 log(1.25/delta) / epsilon^2`. A pull towards the mean of m
    clients, whose own weights differ by SPREAD, is best at strength `v_k / tau^2` and removes the part
    `(1 - 1/m) v_k / (v_k + tau^2)` of the error (mean estimation; Liu, Hu, Wu and Smith, 2022, section 5). At client
    level the mean itself is noisy, which adds `features * noise^2 / m^2` to tau^2.
    """
    clients = len(sizes)
    if clients == 1:
        return Method("local", 1.0, "there is only one client, and nobody to learn from")
    n = np.asarray(sizes, float)
    units = clients if level == "client" else n
    deltas = np.minimum(1e-5, units**-1.1) if delta is None else delta
    noise = 2 * np.log(1.25 / deltas) / epsilon**2 if level != "none" and epsilon else np.zeros(1)
    variance = 1 / n + (features * noise / n**2 if level == "example" else 0)
    spread = SPREAD**2 + (features * float(np.max(noise)) / clients**2 if level == "client" else 0)
    gain = float(np.median((1 - 1 / clients) * variance / (variance + spread)))
    strength = float(np.median(variance) / spread)
    budget = f"epsilon {epsilon:g}" if level != "none" and epsilon else "no noise"
    basis = (
        f"with {clients} clients of {np.median(n):.0f} rows (median), {features} features and {budget}, theory expects "
        f"sharing to remove {100 * gain:.0f} % of a typical client's error"
    )
    strength = 10 ** (round(10 * math.log10(min(max(strength, 0.05), 20.0))) / 10)
    strength = float(f"{strength:.2g}")
    if gain < WORTH_SHARING:
        return Method("local", strength, f"{basis}: training alone is simpler and about as good")
    return Method("mean_regularized", strength, f"{basis}: models of their own, pulled to their mean")
