"""The papers' own settings, which are for an accelerator: which items, what is compared, and on which data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.studies.reproduce.comparison import Comparison
from benchmarks.studies.reproduce.cross_silo_measures import (
    CIFAR,
    FEDAVG,
    MASKS,
    MEAN,
    MNIST,
    SCHOOL_FULL,
    SCHOOL_WORDS,
    methods,
)
from benchmarks.studies.reproduce.full_data import Recipe
from kinfolk.training.experiment import ModelChoice


@dataclass(frozen=True)
class Full:
    """An item in full."""

    setting: Comparison
    """Its `data` is not used: `recipe` makes them."""
    recipe: Recipe
    words: str
    """Which data."""


FULL_STRENGTHS = (0.0, 0.1, 1.0, 10.0, math.inf)
MNIST_FULL = replace(
    MNIST,
    methods=methods(100, FULL_STRENGTHS, clusters=4),
    epsilons=(1.0,),
    model=ModelChoice("cnn", (32, 64)),
    delta=1e-7,
    rounds=100,
    batch=100,
    seeds=3,
)
CIFAR_FULL = replace(
    CIFAR,
    methods=methods(100, FULL_STRENGTHS),
    epsilons=(2.0, 8.0, math.inf),
    model=ModelChoice("cnn", (32, 64)),
    delta=1e-5,
    rounds=100,
    batch=100,
    seeds=3,
)
CIFAR_RECIPE = Recipe("cifar10", {"silos": 30, "classes": 5}, rows=(500, 100), images=17_000)


def mnist(masks: int) -> Full:
    """40 silos of 1500 images, as in the paper."""
    words = f"MNIST: 40 silos of 1500 images, 4 rotations, {masks} of 196 patches white, a CNN"
    return Full(MNIST_FULL, Recipe("rotated_mnist", {"masks": masks}), words)


STUDIES: dict[str, Mapping[str, Full]] = {
    "school": {"cross-silo/figure-3b": Full(SCHOOL_FULL, Recipe("school", {"scaling": "as_published"}), SCHOOL_WORDS)},
    "mnist": {f"cross-silo/figure-6{letter}": mnist(masks) for letter, masks in MASKS.items()},
    "cifar10": {
        "cross-silo/figure-3d": Full(
            CIFAR_FULL, CIFAR_RECIPE, "CIFAR-10: 30 silos of 5 classes, at most 500 images for training in each, a CNN"
        )
    },
}
"""By the name of the study: its items. FEMNIST has a study of its own."""


def tiny(full: Full) -> Full:
    """The same path in seconds: two methods, one strength, two rounds, a linear model, few rows."""
    kept = {n: replace(m, strengths=m.strengths[1:2]) for n, m in full.setting.methods.items() if n in (FEDAVG, MEAN)}
    small = ModelChoice("softmax") if full.setting.model.name == "cnn" else full.setting.model
    setting = replace(full.setting, methods=kept, epsilons=full.setting.epsilons[-2:], model=small, rounds=2, seeds=2)
    options = {"silos": 4, **({"train_rows": 20, "test_rows": 5} if full.recipe.name == "rotated_mnist" else {})}
    recipe = (
        full.recipe
        if full.recipe.name == "school"
        else replace(full.recipe, options={**full.recipe.options, **options})
    )
    return Full(replace(setting, batch=10), replace(recipe, rows=(20, 5), images=None), full.words)
