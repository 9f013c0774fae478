"""From the words of an experiment to models, algorithms and arrays. Needs jax and numpy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import models
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.registry import resolve
from kinfolk.algorithms.relations import RELATED, RELATION, with_relation
from kinfolk.data.federation import Federation
from kinfolk.outcomes import OUTCOMES
from kinfolk.personalize import registry
from kinfolk.toml import ConfigError
from kinfolk.training.experiment import Experiment, ModelChoice, Phase
from kinfolk.types import Afterwards, Algorithm, Model, Tree

LINEAR = {about.model: outcome for outcome, about in OUTCOMES.items()}
"""The linear model of every outcome, by name; each also for sparse rows (`data/sparse.py`)."""
SPARSE = "sparse_"
"""Before the name of an outcome's linear model: the one for sparse rows."""
OWN = "own"
"""The name of a model that was given as an object."""
OF_ANY_OUTCOME = ("linear", "mlp")
"""`linear` is the linear model of whatever the data hold: the default, which has to fit them."""
NAMES = (*LINEAR, "mlp", "cnn", *models.NETWORKS, *(SPARSE + name for name in LINEAR))


def is_sparse(data: Federation) -> bool:
    """Whether rows are given by their entries."""
    return getattr(data.train, "features", None) is not None


def fitting(choice: ModelChoice, data: Federation) -> ModelChoice:
    """The model to build for these rows: `linear` is the one for sparse rows where they are, others are as named."""
    if choice.name == OWN or is_sparse(data) == choice.name.startswith(SPARSE):
        return choice
    if choice.name == "linear":
        return replace(choice, name=SPARSE + choice.name)
    kind = "sparse, and it reads dense ones" if is_sparse(data) else "dense, and it reads sparse ones"
    raise ConfigError(f"model={choice.name!r}: the rows of {data.name!r} are {kind}: use 'linear', which fits both")


def build_model(choice: ModelChoice, shape: tuple[int, ...], outcome: str, classes: int) -> Model:
    """The model of that name, for examples of this shape and outcomes as the data has them."""
    if choice.name == OWN:
        raise ConfigError(f"model={OWN!r} was given as an object: give it again, as model= of run or resume")
    if choice.name not in NAMES:
        raise ConfigError(f"model={choice.name!r} is not one of {', '.join(NAMES)}")
    plain = choice.name.removeprefix(SPARSE)
    wanted = LINEAR.get(plain, "classes")
    if plain not in OF_ANY_OUTCOME and outcome != wanted:
        raise ConfigError(
            f"model={choice.name!r} predicts {wanted}, but the data holds {outcome}: use 'linear', which fits any "
            "outcome, or 'mlp'"
        )
    if plain != choice.name:
        return models.generalized_linear(math.prod(shape), outcome, classes, sparse=True)
    if choice.name.startswith("cnn"):
        return _image_model(choice, shape, classes)
    features = math.prod(shape)
    if plain in LINEAR:
        model = models.generalized_linear(features, outcome, classes)
    else:
        model = models.mlp(features, OUTCOMES[outcome].outputs(classes), choice.hidden, outcome)
    return model if len(shape) == 1 else models.sequential((models.Flatten(), *model.layers), outcome)


def _image_model(choice: ModelChoice, shape: tuple[int, ...], classes: int) -> Model:
    if len(shape) != 3 or shape[0] != shape[1]:
        raise ConfigError(
            f"model={choice.name!r} needs square images (height, width, channels), and an example has shape {shape}"
        )
    try:
        if choice.name == "cnn":
            return models.cnn(shape[0], classes, choice.hidden, inputs=shape[2])
        return models.NETWORKS[choice.name](shape[0], classes, shape[2])
    except ValueError as error:
        raise ConfigError(f"model={choice.name!r}: {error}") from None


def shared_model(method: str, model: Model, shared: Tree) -> Tree | None:
    """The one model for everybody in a method's shared state; None where there is none.

    `method`: its name. `model`: what it would look like. `shared`: the state, or its shapes, without leading axes.
    """
    found = shared["model"] if isinstance(shared, dict) and "model" in shared else shared
    wanted = jax.eval_shape(model.init, jax.random.key(0))
    if method == "local" or jax.tree.structure(found) != jax.tree.structure(wanted):
        return None
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return found if all(own.shape == other.shape for own, other in pairs) else None


def build_algorithm(phase: Phase, level: str, ids: Sequence[str] | None = None) -> Algorithm:
    """The phase's algorithm, if it may be used at this level.

    `ids`: the clients in their order, which a relation between them refers to; None: not known, so without relation.
    """
    if phase.method not in REGISTRY:
        raise ConfigError(f"method={phase.method!r} is not one of {', '.join(REGISTRY)}")
    try:
        method, options = resolve(phase.method, phase.options)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    entry = REGISTRY[method]
    if level not in entry.levels:
        raise ConfigError(f"{method} cannot run at level={level!r}; it can at {', '.join(entry.levels)}")
    _require_options(phase.method, method, options)
    try:
        if RELATION in entry.options():
            options = with_relation(options, ids)
        return entry.build(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{phase.method}: {error}") from None


def require_used(experiment: Experiment) -> None:
    """Refuses phases whose releases would be paid for and not used, by nobody or not by all."""
    privacy = experiment.privacy
    for phase in experiment.phases:
        entry = REGISTRY.get(phase.method)
        if entry is not None and privacy.level.private and phase.rounds < entry.fewest_rounds:
            raise ConfigError(
                f"rounds={phase.rounds}: {phase.method} uses what it releases in later rounds only: give it at least "
                f"{entry.fewest_rounds}"
            )
        if entry is not None and privacy.cohort is not None and not entry.in_cohorts:
            raise ConfigError(
                f"cohort={privacy.cohort:g}: with {phase.method} a client that is in no later round has no use of what "
                "was released: leave cohort out"
            )


def _require_options(asked: str, method: str, options: Mapping[str, object]) -> None:
    """Refuses options that a method does not have; `asked`: its name as the user knows it."""
    own = tuple(REGISTRY[method].options())
    known = tuple(dict.fromkeys((*own, *RELATED))) if RELATION in own else own
    for name in sorted(options):
        if name in known:
            continue
        if name in RELATED:
            raise ConfigError(f"{asked} has no option {name!r}: relation_regularized has it; use that, or leave it out")
        raise ConfigError(f"{asked} has no option {name!r}; it has {', '.join(known)}")


def build_afterwards(experiment: Experiment) -> Afterwards | None:
    """What clients do alone after training, if they may."""
    chosen = experiment.afterwards
    if chosen is None:
        return None
    if experiment.privacy.level.clients_pay:
        raise ConfigError(
            f"afterwards={chosen.method!r} looks at raw data after training: it is free at level='client' and refused "
            "at level='example', where every look is paid for (use a second phase instead)"
        )
    try:
        return registry.build(chosen.method, chosen.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"afterwards: {error}") from None


def as_array(tree: Tree) -> Tree:
    """Leaves as float32 arrays."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def as_sweep(tree: Tree, points: int = 1) -> Tree:
    """Leaves as float32 arrays with a leading sweep axis, for the engine."""
    wide = lambda leaf: np.broadcast_to(np.asarray(leaf, np.float32), (points, *np.shape(leaf)))  # noqa: E731
    return jax.tree.map(lambda leaf: jnp.asarray(wide(leaf)), tree)
