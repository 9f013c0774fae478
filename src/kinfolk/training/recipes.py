"""Settings for data nobody has looked at: from the level, the (public) sizes and the schema alone.

The one place that decides model, method, local work and rounds where the user did not: for the command line,
`compare`, the estimators and `recommend`.

>>> automatic("example", [40] * 20, features=10, epsilon=1.0).method
'mean_regularized'
>>> automatic("example", [5000] * 20, features=10, epsilon=3.0).method
'local'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kinfolk import limits
from kinfolk.algorithms.registry import REGISTRY, rounds_of, takes_steps
from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import Federation
from kinfolk.data.registry import load_data
from kinfolk.data.tables import schema as schemas
from kinfolk.outcomes import OUTCOMES
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.inputs import as_units

SPREAD = 0.25
"""How much the weights of different clients are taken to differ (standard deviation, features between -1 and 1)."""
WORTH_SHARING = 0.2
"""Clients share when that is predicted to remove at least this part of their error."""
LARGEST_FULL_BATCH = 2**14
"""The most examples that one exact release can sum."""
PULLED = ("mean_regularized", "ditto", "relation_regularized")
"""Methods whose strength is that of a pull towards a mean, for which theory has a value."""
FEW = "few_releases"
"""The method for linear regression at example level, where its signal suffices."""
LEAST_SIGNAL = 3.0
"""How far a gradient of all clients must stand out of its noise (`signal_of`) for few releases to be picked."""
FEWEST_CLIENTS, MOST_FEATURES = 5, 100
"""Few releases learn from at least so many clients what they have in common, and release this number squared."""
MODELS = {outcome: about.model for outcome, about in OUTCOMES.items()}
COMPARED_STRENGTH = 0.5
"""What methods that pull are compared with on built-in data."""


@dataclass(frozen=True)
class Given:
    """What the user has decided; None: nothing yet."""

    method: str | None = None
    """`auto` is None."""
    rounds: int | None = None
    step_size: float | None = None
    batch_size: int | None = None
    """0: full batches."""
    strength: float | str | None = None
    hidden: tuple[int, ...] = ()
    """Widths of the hidden layers of a network; none: a linear model."""
    relation: Any = None
    """Who is related to whom: a mapping from clients to groups, or a matrix (groups x clients)."""
    pull: str | None = None
    """In every local `step`, or once a `round`."""

    def __post_init__(self) -> None:
        limits.settle(self)
        if self.strength not in (None, "auto"):
            object.__setattr__(self, "strength", limits.checked("strength", self.strength))
        if self.method == "auto":
            object.__setattr__(self, "method", None)

    def only_for(self, method: str) -> Given:
        """The same for one method of several, without the numbers that it does not have."""
        known = REGISTRY[method].options()
        lacking = {name: None for name in ("strength", "step_size", "relation", "pull") if name not in known}
        return replace(self, method=method, **lacking)


@dataclass(frozen=True)
class Recipe:
    """What was decided, and why."""

    model: ModelChoice
    training: Training
    phase: Phase
    notes: tuple[str, ...] = ()
    """For the person at the screen."""


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


def recommend(
    federation: Federation,
    privacy: PrivacyLevel | None = None,
    *,
    seed: int | None = None,
    seeds: int = 1,
    method: str | None = None,
    rounds: int | None = None,
    step_size: float | None = None,
    batch_size: int | None = None,
    strength: float | str | None = None,
    hidden: Sequence[int] = (),
    relation: Any = None,
    pull: str | None = None,
) -> Experiment:
    """An experiment for data nobody has looked at, as the command line and the estimators would choose it.

    `federation`: features between -1 and 1; only its public numbers are used. `privacy`: the level, by default
    example level with epsilon 3. `seed`, `seeds`: of a simulation; no seed makes a release. What else is given comes
    first: `method`, `rounds`, `step_size`, `batch_size` (0: full batches), `strength` (a number or "auto"), `hidden`
    (widths of a network's hidden layers), `relation` (a mapping from clients to groups, or a matrix) and `pull` (in
    every local "step", or once a "round").

    Run it with `run(experiment, data=federation)`.
    """
    level = example_level(epsilon=3.0) if privacy is None else privacy
    given = Given(
        method,
        rounds,
        step_size,
        batch_size=batch_size,
        strength=strength,
        hidden=tuple(hidden),
        relation=relation,
        pull=pull,
    )
    found = for_federation(federation, level, given)
    return Experiment(
        name=found.phase.method,
        seed=seed,
        seeds=seeds,
        data=DataChoice(federation.name, given=True),
        model=found.model,
        training=found.training,
        privacy=level,
        phases=(found.phase,),
    )


def for_federation(federation: Federation, privacy: PrivacyLevel, given: Given) -> Recipe:
    """Model, local work and method for data of one's own, from public numbers; what the user gave comes first."""
    federation = as_units(federation, privacy)
    sizes, features = federation.train.sizes.tolist(), math.prod(federation.shape)
    usual = settings(privacy.level, step_size_of(federation.outcome, _inputs(federation), federation.classes), sizes)
    sparse = "sparse_" if getattr(federation.train, "features", None) is not None else ""
    picked = automatic(privacy.level, sizes, features, privacy.epsilon, privacy.delta)
    if federation.outcome == "number" and not sparse and not given.hidden:
        picked = few_releases(privacy, sizes, features, given) or picked
    method, notes = given.method or _asked_for(given), ()
    if method is None:
        method = picked.method
        pull = f" with strength {picked.strength:g}" if method in PULLED else ""
        notes = (f"method={method}{pull} was picked: {picked.why}",)
    model = ModelChoice("mlp", given.hidden) if given.hidden else ModelChoice(sparse + MODELS[federation.outcome])
    strength = picked.strength if method in PULLED else None
    return Recipe(model, *_work(method, given, usual, strength), notes)


def for_choice(choice: DataChoice, seed: int, privacy: PrivacyLevel, given: Given) -> Recipe:
    """Model, local work and method for data by name: a built-in set, or a function of the user's own (loaded here)."""
    if ":" in choice.name:
        return for_federation(load_data(choice, seed), privacy, given)
    method = given.method or _asked_for(given) or "mean_regularized"
    model = ModelChoice("mlp", given.hidden) if given.hidden else ModelChoice()
    return Recipe(model, *_work(method, given, Settings(60, 0.1, 32), None))


def _asked_for(given: Given) -> str | None:
    """The method that the user asks for without naming it."""
    if given.relation is not None:
        return "relation_regularized"
    return None if given.strength is None and given.pull is None else "mean_regularized"


def _work(method: str, given: Given, usual: Settings, strength: float | None) -> tuple[Training, Phase]:
    """Local work and the method with its options."""
    options: dict[str, Any] = {}
    if takes_steps(method) or given.step_size is not None:
        options["step_size"] = usual.step_size if given.step_size is None else given.step_size
    if strength is not None or given.strength is not None:
        options["strength"] = strength if given.strength is None else given.strength
    if given.pull is not None:
        options["pull"] = given.pull
    if isinstance(given.relation, Mapping):
        options["groups"] = {str(client): group for client, group in given.relation.items()}
    elif given.relation is not None:
        options["relation"] = given.relation
    batch_size = usual.batch_size if given.batch_size is None else given.batch_size or None
    rounds = given.rounds or rounds_of(method) or usual.rounds
    return Training(batch_size), Phase(method, rounds, options)


def _inputs(federation: Federation) -> float:
    """As `inputs_of` has it; features without a schema count as numbers."""
    if not federation.encoding:
        return 1 + math.prod(federation.shape) / 3
    return inputs_of(schemas.from_toml(federation.encoding))


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


def few_releases(privacy: PrivacyLevel, sizes: Sequence[int], features: int, given: Given) -> Method | None:
    """Few releases for linear regression, where public numbers say that they suit; None where they do not.

    Whoever gives a number of gradient descent (rounds, a step, a batch) wants gradient descent.
    """
    clients, epsilon = len(sizes), privacy.epsilon
    if privacy.level != "example" or epsilon is None or privacy.noise_bands > 1:
        return None
    if given.rounds is not None or given.step_size is not None or given.batch_size:
        return None
    suited = features < min(MOST_FEATURES + 1, float(np.median(sizes))) and max(sizes) <= LARGEST_FULL_BATCH
    if clients < FEWEST_CLIENTS or not suited:
        return None
    signal = signal_of(sizes, features, epsilon, privacy.delta)
    if signal < LEAST_SIGNAL:
        return None
    return Method(
        FEW,
        1.0,
        f"with {clients} clients of {np.median(sizes):.0f} rows (median), {features} features and epsilon {epsilon:g}, "
        f"a gradient of all clients stands {signal:.1f} times above its noise: seven releases learn more than many "
        "gradients do, and find the target's range themselves",
    )


def signal_of(sizes: Sequence[int], features: int, epsilon: float, delta: float | None = None) -> float:
    """How far a gradient of all clients together stands out of its noise, from public numbers.

    The mean of `n_k / noise_k`, times the root of the number of clients, over the number of weights.
    """
    n = np.asarray(sizes, float)
    return float(np.mean(n / np.sqrt(_noise(n, epsilon, delta))) * math.sqrt(len(n)) / (features + 1))


def _noise(units: np.ndarray | int, epsilon: float, delta: float | None) -> np.ndarray:
    """The variance of noise on a sum of contributions of length 1 that is released once, roughly."""
    deltas = np.minimum(1e-5, np.asarray(units, float) ** -1.1) if delta is None else np.asarray(delta)
    return 2 * np.log(1.25 / deltas) / epsilon**2


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
    noise = _noise(units, epsilon, delta) if level != "none" and epsilon else np.zeros(1)
    variance = 1 / n + (features * noise / n**2 if level == "example" else 0)
    spread = SPREAD**2 + (features * float(np.max(noise)) / clients**2 if level == "client" else 0)
    gain = float(np.median((1 - 1 / clients) * variance / (variance + spread)))
    strength = float(np.median(variance) / spread)
    budget = f"epsilon {epsilon:g}" if level != "none" and epsilon else "no noise"
    basis = (
        f"with {clients} clients of {np.median(n):.0f} rows (median), {features} features and {budget}, theory expects "
        f"sharing to remove {math.floor(100 * gain)} % of a typical client's error"
    )
    strength = 10 ** (round(10 * math.log10(min(max(strength, 0.05), 20.0))) / 10)
    strength = float(f"{strength:.2g}")
    if gain < WORTH_SHARING:
        least = f"less than the {100 * WORTH_SHARING:.0f} % from which on this shares unasked"
        return Method("local", strength, f"{basis}, {least}: every client trains alone")
    return Method("mean_regularized", strength, f"{basis}: models of their own, pulled to their mean")
