"""Settings for data nobody has looked at: from the level, the (public) sizes and the schema alone.

The one place that decides model, method, local work and rounds where the user did not: for the command line,
`compare`, the estimators and `recommend`. What numbers say is in `public_numbers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kinfolk import limits
from kinfolk.algorithms.registry import REGISTRY, rounds_of, takes_steps
from kinfolk.algorithms.relations import RELATION, options_for
from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import Federation
from kinfolk.data.registry import load_data
from kinfolk.data.tables import schema as schemas
from kinfolk.outcomes import OUTCOMES
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.toml import ConfigError
from kinfolk.training import public_numbers
from kinfolk.training.build import is_sparse
from kinfolk.training.experiment import Afterwards, Experiment, ModelChoice, Phase, Training, require_level
from kinfolk.training.inputs import as_units
from kinfolk.training.public_numbers import Method, Settings

PULLED = ("mean_regularized", "ditto", "relation_regularized")
"""Methods whose strength is that of a pull towards a mean, for which theory has a value."""
MODELS = {outcome: about.model for outcome, about in OUTCOMES.items()}
STUDIED = ("number", "binary", "classes")
"""Outcomes that the study of defaults has; others are trained with the strength that theory has."""
COMPARED_STRENGTH = 0.5
"""What methods that pull are compared with on built-in data."""
SOLVED_ROUNDS, SOLVED_STRENGTH = 3, 0.1
"""Of mean regularisation that solves for linear models, at client level."""
MOST_SOLVED, MOST_SELECTED = 512, 128
"""The most weights of a model that is solved for, and features of one that clients select from candidates."""


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
    """Who is related to whom: a mapping from clients to groups, a matrix (groups x clients), `{"graph": ...}`, each
    client's neighbours or a matrix of weights (clients x clients), or `{"omega": ...}`, the papers' matrix."""
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
    why: str = ""
    """What was chosen, why, and what that is expected to gain, in a sentence; empty where the user chose the method."""
    afterwards: Afterwards | None = None
    """What clients do alone at the end."""

    @property
    def notes(self) -> tuple[str, ...]:
        """For the person at the screen."""
        return (self.why,) if self.why else ()


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
    (widths of a network's hidden layers), `relation` (a mapping from clients to groups, a matrix, `{"graph": ...}`
    or `{"omega": ...}`) and `pull` (in every local "step", or once a "round").

    Run it with `run(experiment, data=federation)`.
    """
    level = example_level(epsilon=3.0) if privacy is None else privacy
    require_level(level)
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
        afterwards=found.afterwards,
        why=found.why,
    )


@dataclass(frozen=True)
class Numbers:
    """What is public about a federation."""

    outcome: str
    classes: int
    sizes: tuple[int, ...]
    features: int
    sparse: bool = False
    inputs: float = field(default=1.0)
    """The squared length that an example is expected to have."""
    ids: tuple[str, ...] = ()
    """Names of clients, by which some have budgets of their own."""

    @property
    def weights(self) -> int:
        """Of a linear model."""
        return (self.features + 1) * max(1, self.classes)


def linear_model(outcome: str, sparse: bool = False) -> ModelChoice:
    """The linear model of an outcome, for rows that are sparse or not."""
    return ModelChoice(f"{'sparse_' if sparse else ''}{MODELS[outcome]}")


def numbers_of(federation: Federation) -> Numbers:
    """What is public about this federation."""
    sizes = tuple(map(int, federation.train.sizes.tolist()))
    features = math.prod(federation.shape)
    sparse, inputs = is_sparse(federation), _inputs(federation)
    return Numbers(federation.outcome, federation.classes, sizes, features, sparse, inputs, tuple(federation.ids))


def for_federation(federation: Federation, privacy: PrivacyLevel, given: Given) -> Recipe:
    """Model, local work and method for data of one's own, from public numbers; what the user gave comes first."""
    return for_numbers(numbers_of(as_units(federation, privacy)), privacy, given)


def for_numbers(public: Numbers, privacy: PrivacyLevel, given: Given) -> Recipe:
    """The same from public numbers alone, before there are data."""
    model = ModelChoice("mlp", given.hidden) if given.hidden else linear_model(public.outcome, public.sparse)
    step = public_numbers.step_size_of(public.outcome, public.inputs, public.classes)
    usual = public_numbers.settings(privacy.level, step, public.sizes)
    budgets = public_numbers.budgets_of(privacy, public.ids)
    theory = public_numbers.automatic(privacy.level, public.sizes, public.features, *budgets)
    method = given.method or _asked_for(given)
    linear = not given.hidden and not public.sparse and public.outcome in STUDIED
    by_steps = given.rounds is not None or given.step_size is not None or bool(given.batch_size)
    if method is None and linear and not by_steps:
        found = public_numbers.few_releases(privacy, public.sizes, public.features, public.outcome, public.ids)
        if found is not None:
            return Recipe(model, *_work(found.method, given, usual), f"method={found.method} was picked: {found.why}")
        if privacy.level == "client" and public.features < MOST_SELECTED:
            return _own_and_shared(model, public, theory, given, usual)
    by_default = given.strength is None and (method == "mean_regularized" or (method is None and len(public.sizes) > 1))
    if linear and privacy.level == "example" and privacy.epsilon and (given.strength == "auto" or by_default):
        return _learned(model, public, privacy, replace(given, method=method), theory)
    if method is not None:
        return Recipe(model, *_work(method, given, usual, theory.strength if method in PULLED else None))
    strength = theory.strength if theory.method in PULLED else None
    pull = "" if strength is None else f" with strength {strength:g}"
    training = _work(theory.method, given, usual, strength)
    return Recipe(model, *training, f"method={theory.method}{pull} was picked: {theory.why}")


def _learned(model: ModelChoice, public: Numbers, privacy: PrivacyLevel, given: Given, theory: Method) -> Recipe:
    """Gradient descent at example level with a strength that is learned for free, and as long as noise allows."""
    epsilon, delta = public_numbers.budgets_of(privacy, public.ids)
    assert epsilon is not None
    bend = public_numbers.FLATNESS * public_numbers.curvature_of(public.outcome, public.classes)
    usual = public_numbers.descent(public.outcome, public.classes, public.sizes, public.features, epsilon, delta)
    training, phase = _work(given.method or "mean_regularized", replace(given, strength="auto"), usual)
    by_precision = public_numbers.differ(epsilon) and privacy.noise_bands == 1
    training = replace(training, weights="precision") if by_precision else training
    start = float(f"{min(theory.strength / bend, public_numbers.LARGEST_START):.2g}")
    phase = replace(phase, options={**phase.options, "start": start, "curvature": float(f"{bend:.2g}")})
    if given.method is not None:
        return Recipe(model, training, phase)
    mean = "a mean in which less noise counts for more" if by_precision else "their mean"
    why = (
        f"method=mean_regularized with strength auto was picked: {theory.basis or theory.why}; models of their own are "
        f"pulled to {mean} by as much as training itself shows to be right, which costs nothing; {phase.rounds} "
        f"rounds with steps of {phase.options['step_size']:g}, whose average is kept, as the noise allows"
    )
    return Recipe(model, training, phase, why)


def _own_and_shared(model: ModelChoice, public: Numbers, theory: Method, given: Given, usual: Settings) -> Recipe:
    """Client level, linear: a shared model, of which every client takes what helps it, by its own rows, for free."""
    if public.weights <= MOST_SOLVED:
        training, phase = (
            Training(usual.batch_size),
            Phase("mean_regularized", SOLVED_ROUNDS, {"strength": SOLVED_STRENGTH, "solved": True}),
        )
    else:
        training, phase = _work("mean_regularized", given, usual, theory.strength)
    why = (
        f"method=mean_regularized with self-selection afterwards was picked: {theory.basis or theory.why}; every "
        "client fits models of its own, near the shared one and near nothing, and weighs them by its own rows, which "
        "costs nothing: it should hardly do worse than alone"
    )
    return Recipe(model, training, phase, why, Afterwards("self_select"))


def for_choice(choice: DataChoice, seed: int, privacy: PrivacyLevel, given: Given) -> Recipe:
    """Model, local work and method for data by name: a built-in set, or a function of the user's own (loaded here).

    A built-in set, which is not loaded here, gets the linear model of whatever it holds (`training/build.py` fits it).
    """
    if ":" in choice.name:
        return for_federation(load_data(choice, seed), privacy, given)
    method = given.method or _asked_for(given) or "mean_regularized"
    model = ModelChoice("mlp", given.hidden) if given.hidden else ModelChoice()
    return Recipe(model, *_work(method, given, Settings(60, 0.1, 32)))


def _asked_for(given: Given) -> str | None:
    """The method that the user asks for without naming it."""
    if given.relation is not None:
        return "relation_regularized"
    return None if given.strength is None and given.pull is None else "mean_regularized"


def _work(method: str, given: Given, usual: Settings, strength: float | None = None) -> tuple[Training, Phase]:
    """Local work and the method with its options."""
    options: dict[str, Any] = {}
    if takes_steps(method) or given.step_size is not None:
        options["step_size"] = usual.step_size if given.step_size is None else given.step_size
    if strength is not None or given.strength is not None:
        options["strength"] = strength if given.strength is None else given.strength
    if given.pull is not None:
        options["pull"] = given.pull
    if given.relation is not None:
        if method in REGISTRY and RELATION not in REGISTRY[method].options():
            raise ConfigError(
                f"method={method!r} takes no relation: name relation_regularized, which does, or leave one of them out"
            )
        options |= options_for(given.relation)
    batch_size = usual.batch_size if given.batch_size is None else given.batch_size or None
    rounds = given.rounds or rounds_of(method) or usual.rounds
    return Training(batch_size), Phase(method, rounds, options)


def _inputs(federation: Federation) -> float:
    """As `inputs_of` has it; features without a schema count as numbers."""
    if not federation.encoding:
        return 1 + math.prod(federation.shape) / 3
    return public_numbers.inputs_of(schemas.from_toml(federation.encoding))
