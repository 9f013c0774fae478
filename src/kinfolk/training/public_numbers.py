"""What theory and a design study say about settings, as functions of public numbers: level, budget, sizes, features.

`recipes.py` asks here. The study, with every cell of it, is docs/results/defaults.md.

>>> automatic("example", [40] * 20, features=10, epsilon=1.0).method
'mean_regularized'
>>> descent("binary", 0, [40] * 20, features=10, epsilon=1.0).rounds
120
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.data.tables import schema as schemas
from kinfolk.privacy.levels import PrivacyLevel

SPREAD = 0.25
"""How much the weights of different clients are taken to differ (standard deviation, features between -1 and 1)."""
WORTH_SHARING = 0.2
"""Below this part of their error that sharing is predicted to remove, clients are told that they gain little."""
LARGEST_FULL_BATCH = 2**14
"""The most examples that one exact release can sum."""
FEW, FEW_BINARY = "few_releases", "few_releases_binary"
"""The methods for linear and logistic regression at example level, where their signal suffices."""
LEAST_SIGNAL = 3.0
"""How far a gradient of all clients must stand out of its noise (`signal_of`) for few releases to be picked."""
FEWEST_CLIENTS, MOST_FEATURES = 5, 100
"""Few releases learn from at least so many clients what they have in common, and release this number squared."""
LEAST_SIGNAL_BINARY, FEWEST_BINARY, MOST_BINARY = 8.0, 4, 63
"""The same for yes or no: the least signal and number of clients that the design study has, and most features."""
ROUNDS, FEWER_ROUNDS = 120, 60
"""Of gradient descent with a learned strength: more and smaller steps, as far as that costs little time."""
QUICK = 5e6
"""Multiplications in a round (rows x weights) up to which there are more rounds."""
USUAL_SIGNAL, USUAL_LENGTH = 12.0, 7.5
"""Training of this length (steps x step size x curvature) suits a signal of this size."""
SHORTEST, LONGEST = 0.5, 4.0
"""Times the usual length."""
FLATNESS = 0.4
"""Curvature along the features that matter, in units of that of the loss in the model's output."""
LARGEST_START = 20.0
"""The strength from which learning begins is at most this."""
Epsilon = float | Sequence[float]
"""Everybody's, or every client's own."""
Delta = float | Sequence[float | None] | None
"""Likewise; None: min(1e-5, n^-1.1)."""
DIFFER = 2.0
"""From this largest over least epsilon on, a mean of clients that take gradient steps goes by their precision."""


@dataclass(frozen=True)
class Settings:
    """Local work and rounds that suit a model on scaled features."""

    rounds: int
    step_size: float
    batch_size: int | None


@dataclass(frozen=True)
class Method:
    """A method and the reason for it in words."""

    method: str
    strength: float
    """The best pull towards the mean, by the same theory; for methods that pull."""
    why: str
    basis: str = ""
    """What theory expects sharing to gain, in words; part of the reason."""


def inputs_of(schema: schemas.Schema) -> float:
    """The squared length of an example whose features are spread evenly over their bounds, with 1 for the bias."""
    return 1 + sum(1 if column.kind != "number" else 1 / 3 for column in schema.columns)


def step_size_of(outcome: str, inputs: float, classes: int = 0) -> float:
    """One over the curvature that features spread evenly over their bounds would have, at most a half.

    `inputs`: the squared length that an example is expected to have. The loss of a logit bends a quarter as much as
    that of a number; those of several labels are divided by the root of their number, and steps are longer by it.
    """
    curvature = inputs / 4 if outcome in ("binary", "classes", "labels") else inputs
    longer = math.sqrt(classes) if outcome == "labels" else 1.0
    return float(f"{longer * min(0.5, 1 / curvature):.2g}")


def settings(level: str, step_size: float, sizes: Sequence[int]) -> Settings:
    """Rounds, step and batch size.

    With noise on every step, full batches and few rounds waste the least of the budget; at client level local steps are
    free, and few rounds are released.
    """
    if level == "example":
        return Settings(60, step_size, None if max(sizes) <= LARGEST_FULL_BATCH else 2048)
    return Settings(20 if level == "client" else 60, step_size, 32)


def budgets_of(privacy: PrivacyLevel, ids: Sequence[str]) -> tuple[Epsilon | None, Delta]:
    """Epsilon and delta: everybody's, or every client's where some have budgets of their own. `ids`: their names."""
    found = [privacy.budget(name) for name in ids] if privacy.budgets else []
    own = [one for one in found if one is not None]
    if privacy.epsilon is None or not own:
        return privacy.epsilon, privacy.delta
    return [one.epsilon for one in own], [one.delta for one in own]


def few_releases(
    privacy: PrivacyLevel, sizes: Sequence[int], features: int, outcome: str = "number", ids: Sequence[str] = ()
) -> Method | None:
    """Few releases for linear and logistic regression, where public numbers say that they suit; None elsewhere."""
    clients, (epsilon, delta) = len(sizes), budgets_of(privacy, ids)
    if privacy.level != "example" or epsilon is None or privacy.noise_bands > 1:
        return None
    if outcome == "binary":
        return _few_releases_binary(sizes, features, epsilon, delta)
    if outcome != "number":
        return None
    suited = features < min(MOST_FEATURES + 1, float(np.median(sizes))) and max(sizes) <= LARGEST_FULL_BATCH
    if clients < FEWEST_CLIENTS or not suited:
        return None
    signal = signal_of(sizes, (features + 1) ** 2, _of_their_mean(epsilon), delta)
    if signal < LEAST_SIGNAL:
        return None
    theory = automatic("example", sizes, features, epsilon, delta)
    return Method(
        FEW,
        theory.strength,
        f"{theory.basis}; a gradient of all clients stands {signal:.1f} times above its noise: seven releases learn "
        "more than many gradients do, and find the target's range themselves",
        theory.basis,
    )


def _few_releases_binary(sizes: Sequence[int], features: int, epsilon: Epsilon, delta: Delta) -> Method | None:
    signal = signal_of(sizes, features + 1, epsilon, delta)
    suited = features <= MOST_BINARY and max(sizes) <= LARGEST_FULL_BATCH
    if len(sizes) < FEWEST_BINARY or not suited or signal < LEAST_SIGNAL_BINARY:
        return None
    theory = automatic("example", sizes, features, epsilon, delta)
    return Method(
        FEW_BINARY,
        theory.strength,
        f"{theory.basis or theory.why}; a gradient of all clients stands {signal:.0f} times above its noise: fourteen "
        "releases, and what clients have in common as everybody's prior, learn more than many gradients do",
        theory.basis,
    )


def signal_of(sizes: Sequence[int], weights: int, epsilon: Epsilon, delta: Delta = None) -> float:
    """How far a gradient of all clients together stands out of its noise, from public numbers.

    The mean of `n_k / noise_k`, times the root of the number of clients, over the root of the number of weights.
    """
    n = np.asarray(sizes, float)
    return float(np.mean(n / np.sqrt(_noise(n, epsilon, delta))) * math.sqrt(len(n) / weights))


def curvature_of(outcome: str, classes: int) -> float:
    """Of the loss in one of the model's outputs, where all classes are as likely."""
    if outcome == "number":
        return 1.0
    share = 1 / max(2, classes)
    return share * (1 - share)


def descent(
    outcome: str, classes: int, sizes: Sequence[int], features: int, epsilon: Epsilon, delta: Delta = None
) -> Settings:
    """Rounds and steps of gradient descent at example level whose models are averaged over rounds.

    Noise that is added in every step moves a model by as much as training is long (steps x step size), whatever the
    number of steps, as more of them need more noise each; so that length goes with the root of the signal. A step is at
    most one over the curvature that features spread evenly over their bounds would have.
    """
    weights = (features + 1) * max(1, classes)
    bend = curvature_of(outcome, classes)
    signal = signal_of(sizes, weights, epsilon, delta)
    length = USUAL_LENGTH * min(max(math.sqrt(signal / USUAL_SIGNAL), SHORTEST), LONGEST) / bend
    rounds = ROUNDS if sum(sizes) * weights <= QUICK else FEWER_ROUNDS
    step = min(length / rounds, 1 / (bend * (1 + features / 3)))
    return Settings(rounds, float(f"{step:.2g}"), None if max(sizes) <= LARGEST_FULL_BATCH else 2048)


def _noise(units: np.ndarray | int, epsilon: Epsilon, delta: Delta) -> np.ndarray:
    """The variance of noise on a sum of contributions of length 1 that is released once, roughly."""
    given, usual = np.asarray(delta, float), np.minimum(1e-5, np.asarray(units, float) ** -1.1)
    return 2 * np.log(1.25 / np.where(np.isnan(given), usual, given)) / np.square(np.asarray(epsilon, float))


def _of_their_mean(epsilon: Epsilon) -> float:
    """The one epsilon with which the plain mean of all clients would have as much noise as it has with theirs."""
    return float(1 / np.sqrt(np.mean(1 / np.square(np.asarray(epsilon, float)))))


def differ(epsilon: Epsilon) -> bool:
    """Whether budgets differ so much that a mean of clients should go by their precision."""
    return float(np.max(epsilon)) >= DIFFER * float(np.min(epsilon))


def _in_words(epsilon: Epsilon) -> str:
    """One number, or the least and the largest."""
    least, most = float(np.min(epsilon)), float(np.max(epsilon))
    return f"epsilon {least:g}" if least == most else f"epsilon {least:g} to {most:g}"


def automatic(level: str, sizes: Sequence[int], features: int, epsilon: Epsilon | None, delta: Delta = None) -> Method:
    """The method that theory predicts to be best, from public numbers alone.

    Estimating one weight of client k from its n_k examples has variance v_k: 1/n_k from sampling and, at example level,
    `features * noise^2 / n_k^2` from noise, `noise^2 = 2 log(1.25/delta) / epsilon^2`. A pull towards the mean of m
    clients, whose own weights differ by SPREAD, is best at strength `v_k / tau^2` and removes the part
    `(1 - 1/m) v_k / (v_k + tau^2)` of the error (mean estimation; Liu, Hu, Wu and Smith, 2022, section 5). At client
    level the mean itself is noisy, which adds `features * noise^2 / m^2` to tau^2.
    """
    clients = len(sizes)
    if clients == 1:
        return Method("fedavg", 1.0, "there is only one client, and nobody to learn from")
    n = np.asarray(sizes, float)
    units = clients if level == "client" else n
    noise = _noise(units, epsilon, delta) if level != "none" and epsilon else np.zeros(1)
    variance = 1 / n + (features * noise / n**2 if level == "example" else 0)
    spread = SPREAD**2 + (features * float(np.max(noise)) / clients**2 if level == "client" else 0)
    gain = float(np.median((1 - 1 / clients) * variance / (variance + spread)))
    strength = float(np.median(variance) / spread)
    budget = _in_words(epsilon) if level != "none" and epsilon else "no noise"
    basis = (
        f"with {clients} clients of {np.median(n):.0f} rows (median), {features} features and {budget}, theory expects "
        f"sharing to remove {math.floor(100 * gain)} % of a typical client's error"
    )
    strength = 10 ** (round(10 * math.log10(min(max(strength, 0.05), 20.0))) / 10)
    strength = float(f"{strength:.2g}")
    if gain < WORTH_SHARING:
        least = f"less than {100 * WORTH_SHARING:.0f} %"
        loosely = "models of their own, held loosely to their mean, which is there for newcomers"
        return Method("mean_regularized", strength, f"{basis}, {least}: {loosely}", basis)
    return Method("mean_regularized", strength, f"{basis}: models of their own, pulled to their mean", basis)
