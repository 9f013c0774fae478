"""What a run works on: data and model, found by their names or given as objects, and how a run writes them down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import jax

from kinfolk import limits, trees
from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import Federation
from kinfolk.data.people import by_person
from kinfolk.data.registry import load_data, recorded
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training.build import OWN, build_model
from kinfolk.training.experiment import Experiment, ModelChoice
from kinfolk.types import Model

GivenData = Federation | Sequence[Federation]
"""A federation for all seeds, or one for each."""


def in_words(experiment: Experiment, data: GivenData | None, model: Model | None) -> Experiment:
    """The experiment as a run writes it down: what was given as an object is named, and marked as given.

    Data of tables are marked nowhere: they are those of the files that the experiment names, read already.
    """
    if data is not None and not experiment.data.files:
        name = (data if isinstance(data, Federation) else data[0]).name
        experiment = replace(experiment, data=DataChoice(name, given=True, pooled=experiment.data.pooled))
    elif data is None:
        experiment = replace(experiment, data=recorded(experiment.data))
    return experiment if model is None else replace(experiment, model=ModelChoice(OWN))


def federations_of(experiment: Experiment, data: GivenData | None) -> Sequence[Federation]:
    """The federations to train on, one per seed: those given, or those that the experiment names, as units."""
    level = experiment.privacy
    if data is None:
        first = experiment.seed or 0
        return [as_units(load_data(experiment.data, n), level) for n in range(first, first + experiment.seeds)]
    if isinstance(data, Federation):
        return [as_units(data, level)] * experiment.seeds
    return [as_units(one, level) for one in data]


def as_units(data: Federation, privacy: PrivacyLevel) -> Federation:
    """What is trained on: where each client protects its own data and people are declared, people; else rows."""
    return by_person(data) if privacy.level.clients_pay else data


def check_given(experiment: Experiment, data: GivenData | None, model: Model | None) -> None:
    """Refuses objects that are no data or no model, or not as many as there are seeds."""
    found = [] if data is None else [data] if isinstance(data, Federation) else data
    for one in found:
        if not isinstance(one, Federation):
            raise ConfigError(f"data={type(one).__name__}: give a Federation (from_rows makes one), or one per seed")
    if data is not None and not isinstance(data, Federation) and len(data) != experiment.seeds:
        raise ConfigError(
            f"data has {len(data)} federations and seeds={experiment.seeds}: give one for each seed, or one for all"
        )
    if model is not None and not isinstance(model, Model):
        raise ConfigError(f"model={type(model).__name__}: give a Model (from_functions makes one)")


def model_for(experiment: Experiment, data: Federation, model: Model | None) -> Model:
    """The model given, if it predicts what the data hold, or the one that the experiment names."""
    if model is None:
        named = build_model(experiment.model, data.shape, data.outcome, data.classes)
        weights = trees.size(jax.eval_shape(named.init, jax.random.key(0)))
        if weights > limits.MOST_WEIGHTS:
            raise ConfigError(
                f"model={experiment.model.name!r} with hidden={experiment.model.hidden} has {weights} weights: "
                f"{limits.MOST_WEIGHTS} are the most; choose fewer or narrower layers"
            )
        return named
    if model.outcome != data.outcome:
        raise ConfigError(f"model predicts {model.outcome}, but data {data.name!r} holds {data.outcome}: change either")
    return model


def fingerprint(federations: Sequence[Federation]) -> str:
    """What the data of a run are known by: who takes part and how many rows each brings, without looking at them."""
    about = [
        [data.name, data.outcome, data.classes, data.ids, data.train.sizes.tolist(), data.test.sizes.tolist()]
        for data in federations
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def facts(experiment: Experiment, federations: Sequence[Federation], programs: Sequence[str]) -> dict[str, object]:
    """What a run keeps, in private, to know its data and its model again."""
    own = {"program": list(programs)} if experiment.model.name == OWN else {}
    return {"data": fingerprint(federations), **own}


def require_same(begun: dict[str, object], now: dict[str, object]) -> None:
    """Refuses to go on with other data, or with another model, than a run began with."""
    if begun.get("data", now["data"]) != now["data"]:
        raise PrivacyError(
            "data differ from those the run began with (name, clients, or how many rows each has): give the same, or "
            "start a new run"
        )
    if begun.get("program") != now.get("program"):
        raise PrivacyError(
            "model computes something else than the one the run began with (or another version of JAX traces it): give "
            "the same, or start a new run"
        )


def require_given(experiment: Experiment, data: GivenData | None, model: Model | None) -> None:
    """Says what has to be given again, for a run whose data or model were objects."""
    missing = [
        name
        for name, needed in (
            ("data", experiment.data.given and data is None),
            ("model", experiment.model.name == OWN and model is None),
        )
        if needed
    ]
    if missing:
        call = ", ".join(f"{name}=..." for name in missing)
        raise ConfigError(
            f"{' and '.join(missing)} of this run were given as objects, which no file holds: give them again, as "
            f"resume(path, {call})"
        )
    if model is not None and experiment.model.name != OWN:
        raise ConfigError(f"model was given, and this run's is {experiment.model.name!r}: leave model out")
