"""The papers' own settings, which are for an accelerator: which items, what is compared, and on which data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.studies.reproduce.comparison import MOST_LOSS, Comparison, Method, Noises
from benchmarks.studies.reproduce.cross_silo_measures import (
    AFTERWARDS,
    CIFAR,
    FEDAVG,
    LOCAL,
    MASKS,
    MASKS_OURS,
    MEAN,
    MNIST,
    SCHOOL_FULL,
    SCHOOL_WORDS,
    THEIR_CLUSTERS,
    budget,
    formed,
    methods,
    warmed,
)
from benchmarks.studies.reproduce.full_data import Recipe
from benchmarks.studies.reproduce.pmtl_measures import (
    EACH,
    FEMNIST,
    NOISE_STRENGTH,
    ROUNDS_STRENGTH,
    STRENGTH_OURS,
    THREE,
    UNTUNED,
    client_budget,
    follow,
    noises,
)
from benchmarks.studies.reproduce.pmtl_printed import GRID, ONE
from kinfolk.training.experiment import ModelChoice


@dataclass(frozen=True)
class Full:
    """An item in full."""

    setting: Comparison
    """Its `data` is not used: `recipe` makes them."""
    recipe: Recipe
    words: str
    """Which data."""
    budget: str
    """The guarantee, rounds and other settings, in words."""
    noises: Noises | None = None
    """Where the one method is followed over rounds: with which noise and clip norms."""
    note: str = ""
    """What has to be known of it."""


FULL_STRENGTHS = (0.0, 0.1, 1.0, 10.0, 100.0, 1e3, math.inf)
SAME: Mapping[tuple[str, float | None], str] = {(MEAN, 0.0): LOCAL, (MEAN, math.inf): FEDAVG}
"""Methods at the ends of their grid that are another one to the last bit: that one's run is theirs too."""


def few(rounds: int) -> dict[str, Method]:
    """Those that figure 6 is about: without fine-tuning, and without Ditto, which takes twice as long."""
    return {name: method for name, method in methods(rounds, FULL_STRENGTHS).items() if name in (LOCAL, FEDAVG, MEAN)}


MNIST_FULL = replace(
    MNIST,
    methods={**few(100), **warmed(100, FULL_STRENGTHS)},
    epsilons=(1.0,),
    model=ModelChoice("cnn", (32, 64)),
    delta=1e-7,
    rounds=100,
    batch=100,
    seeds=3,
)
CIFAR_FULL = replace(
    CIFAR,
    methods={**methods(100, FULL_STRENGTHS), **formed(100, clusters=4)},
    epsilons=(2.0, 8.0, math.inf),
    model=ModelChoice("cnn", (32, 64)),
    delta=1e-5,
    rounds=100,
    batch=100,
    seeds=3,
)
PLAIN_FULL = replace(
    FEMNIST,
    methods=THREE,
    epsilons=(0.1, 0.8, 2.0, 8.0),
    model=ModelChoice("cnn_paper"),
    cohort=100,
    rounds=100,
    seeds=3,
)
GUESSED = (
    "How many clusters IFCA has is our guess, and its choices had epsilon 0.03 each. Rounds, batches and silos are "
    f"ours too: the text does not say. {AFTERWARDS}"
)
CIFAR_RECIPE = Recipe("cifar10", {"silos": 30, "classes": 5}, rows=(500, 100), images=17_000, divided_by=0)


NOISE_FULL = replace(PLAIN_FULL, methods=follow(NOISE_STRENGTH), epsilons=(1.0,))
ROUNDS_FULL = replace(NOISE_FULL, methods=follow(ROUNDS_STRENGTH), rounds=1000, seeds=2)
AS_PRINTED = (
    "Noise is added to every weight of the cohort's mean, as algorithm 1 prints it: with 115 646 weights and deviation "
    "0.05 it has length 17, and the mean of updates at most that of the clip norm. Losses above "
    f"{MOST_LOSS:g}, and those of runs that diverged, are shown as {MOST_LOSS:g}. "
    f"{STRENGTH_OURS.format(NOISE_STRENGTH)}"
)
TITLED = "Noise, clip norm and rounds are those of the panel's title and axis. " + STRENGTH_OURS.format(ROUNDS_STRENGTH)
WRITERS = Recipe("femnist", {"most_images": 50})
WRITERS_WORDS = "FEMNIST of LEAF: 294 writers, at most 50 images each, cnn_paper"


def over_rounds(setting: Comparison, grid: Sequence[tuple[float, float]], note: str) -> Full:
    """PMTL followed over rounds, for noise and clip norms."""
    return Full(setting, WRITERS, WRITERS_WORDS, client_budget(setting, EACH), noises(setting, grid), note)


WEAK_OPEN = "The authors' script has strength 0.001, and none between 0 and 1 was run: MR-MTL may do better than this."


def mnist(masks: int) -> Full:
    """40 silos of 1500 images, as in the paper."""
    words = f"MNIST: 40 silos of 1500 images, 4 rotations, {masks} of 196 patches white, a CNN"
    note = f"{MASKS_OURS} {AFTERWARDS} {WEAK_OPEN}"
    return Full(MNIST_FULL, Recipe("rotated_mnist", {"masks": masks}), words, budget(MNIST_FULL), note=note)


STUDIES: dict[str, Mapping[str, Full]] = {
    "school": {
        "cross-silo/figure-3b": Full(
            SCHOOL_FULL,
            Recipe("school", {"scaling": "as_published"}),
            SCHOOL_WORDS,
            budget(SCHOOL_FULL),
            note=f"{THEIR_CLUSTERS} {AFTERWARDS}",
        )
    },
    "mnist": {f"cross-silo/figure-6{letter}": mnist(masks) for letter, masks in MASKS.items()},
    "cifar10": {
        "cross-silo/figure-3d": Full(
            CIFAR_FULL,
            CIFAR_RECIPE,
            "CIFAR-10 (17 000 of its images, a quarter of them to test on): 30 silos of 5 classes, 389 to 454 "
            "images to train on in each, a CNN",
            budget(CIFAR_FULL),
            note=GUESSED,
        )
    },
    "plain": {
        "pmtl/figure-1": Full(PLAIN_FULL, WRITERS, WRITERS_WORDS, client_budget(PLAIN_FULL), note=UNTUNED),
    },
    "noise": {
        "pmtl/figure-2b": over_rounds(ROUNDS_FULL, ONE["FEMNIST"], TITLED),
        "pmtl/figure-4": over_rounds(NOISE_FULL, GRID, AS_PRINTED),
    },
}
"""By the name of the study: its items. FEMNIST's other items have a study of their own."""
TINY = {
    "school": {},
    "rotated_mnist": {"silos": 4, "train_rows": 20, "test_rows": 5},
    "cifar10": {"silos": 4},
    "femnist": {"writers": 30},
}
"""Of each loader: few clients."""


def tiny(full: Full) -> Full:
    """The same path in seconds: two methods, one strength, two rounds, a linear model, few rows."""
    kept = {
        name: replace(method, strengths=method.strengths[1:2])
        for name, method in full.setting.methods.items()
        if method.algorithm in ("fedavg", "mean_regularized", "joint")
    }
    small = full.setting.model if full.recipe.name == "school" else ModelChoice("softmax")
    setting = replace(full.setting, methods=kept, epsilons=full.setting.epsilons[-2:], model=small, rounds=2, seeds=2)
    setting = replace(setting, batch=10, cohort=None if setting.cohort is None else 3)
    few = full.noises and dict([*full.noises.items()][:2])
    options = {**full.recipe.options, **TINY[full.recipe.name]}
    recipe = replace(full.recipe, options=options, rows=full.recipe.rows and (20, 5), images=None)
    return replace(full, setting=setting, recipe=recipe, noises=few)
