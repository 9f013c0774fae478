"""The tables and figures of Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning;
example level.

School and MNIST are run; of Vehicle only the part on which Ditto trains can be had, CIFAR-10 where its file is, and
GLEAM's panel runs on a stand-in. Budgets are those of the paper where its text names them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.studies.reproduce.comparison import Compared, Comparison, Method, by_strength, compare
from benchmarks.studies.reproduce.full_data import cut
from benchmarks.studies.reproduce.records import Curves, ElsewhereError, Measured, Point, Size, means
from benchmarks.studies.reproduce.stand_ins import like_gleam
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.sets.cifar import SOURCE, cifar10
from kinfolk.data.sets.download import kept
from kinfolk.data.sets.mnist import rotated_mnist
from kinfolk.data.sets.school import school
from kinfolk.data.sets.silos import GLEAM as GLEAM_SOURCE
from kinfolk.data.sets.silos import VEHICLE as VEHICLE_SOURCE
from kinfolk.data.sets.silos import gleam, vehicle
from kinfolk.privacy.levels import example_level
from kinfolk.theory.mean_estimation import Problem
from kinfolk.theory.tuning import POISSON, noise_for
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import prepare

LOCAL, FEDAVG, MEAN, TUNE, DITTO = "local", "FedAvg", "MR-MTL", "local fine-tuning", "Ditto"
BASE, FIRST, ALWAYS = "local, FedAvg, MR-MTL", "IFCA, choosing in the first 10 %", "IFCA, choosing in every round"
MOCHA, IFCA, WARM, FORMED = "Mocha", "IFCA (5%)", "MR-MTL (IFCA 5%)", "IFCA (10%)"
CHOOSING = 0.03
"""Epsilon of a choice, as a share of the whole: as in the authors' code."""


PRINTED = {"pull": "step"}
"""As the papers print it: the pull is part of every local step."""


def methods(rounds: int, strengths: tuple[float, ...]) -> dict[str, Method]:
    """Methods without clusters; fine-tuning begins in the middle. Strength 0 is training alone, infinity averaging."""
    return {
        LOCAL: Method("local"),
        FEDAVG: Method("fedavg"),
        TUNE: Method("fine_tune", {"shared_rounds": max(1, rounds // 2)}),
        DITTO: Method("ditto", PRINTED, strengths),
        MEAN: Method("mean_regularized", PRINTED, strengths),
    }


def formed(rounds: int, clusters: int) -> dict[str, Method]:
    """Figure 3's clusters, which are formed in the first tenth of the rounds."""
    return {FORMED: Method("ifca", {"choosing_rounds": max(2, rounds // 10), "clusters": clusters})}


def warmed(rounds: int, strengths: tuple[float, ...]) -> dict[str, Method]:
    """Figure 6's, one for each rotation, formed in the first twentieth: averaging within them, and MR-MTL."""
    choosing = {"choosing_rounds": max(2, rounds // 20), "clusters": 4}
    return {IFCA: Method("ifca", choosing), WARM: Method("ifca", {**choosing, **PRINTED}, strengths)}


STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
WIDE = (0.0, 0.03, 0.1, *STRENGTHS, 100.0, 1e3, math.inf)
SCHOOL = Comparison(
    data=lambda seed: school(scaling="as_published", seed=seed),
    methods={
        **methods(201, (0.0, *STRENGTHS, math.inf)),
        **formed(201, clusters=3),
        MOCHA: Method("mocha", PRINTED, (0.0, 0.3, 1.0, 3.0, 10.0, 100.0)),
    },
    epsilons=(1.5, 3.0, 6.0),
    level="example",
    rounds=201,
    step_size=0.01,
    weights="size",
    seeds=2,
    options={"choice_bound": 0.1},
    choosing=CHOOSING,
)
VEHICLE = Comparison(
    data=lambda seed: vehicle(seed=seed),
    methods={**methods(30, WIDE), **formed(30, clusters=4)},
    epsilons=(0.5, 2.0, 8.0, math.inf),
    model=ModelChoice("logistic"),
    level="example",
    delta=1e-7,
    rounds=30,
    batch=64,
    step_size=0.1,
    seeds=5,
    options={"choice_score": "error"},
    choosing=CHOOSING,
)
VEHICLE_FULL = replace(
    VEHICLE, methods={**methods(400, WIDE), **formed(400, clusters=4)}, clip=6.0, rounds=400, step_size=0.01
)
"""As the authors' code has it."""
GLEAM = replace(
    VEHICLE, data=like_gleam, epsilons=(0.5, 1.5, 4.0, math.inf), rounds=15, methods=methods(15, (1.0, 10.0)), seeds=2
)
SMALL = (0.0, 0.01, 0.03, 0.1, 1.0, math.inf)
MNIST = Comparison(
    data=lambda seed: rotated_mnist(silos=8, train_rows=500, test_rows=200, seed=seed),
    methods={n: m for n, m in {**methods(20, SMALL), **warmed(20, SMALL)}.items() if n not in (TUNE, DITTO)},
    epsilons=(4.0,),
    model=ModelChoice("softmax"),
    level="example",
    delta=1e-5,
    rounds=20,
    batch=50,
    seeds=2,
    options={"choice_score": "error"},
    choosing=CHOOSING,
)
CIFAR = Comparison(
    data=lambda seed: few_cifar(seed),
    methods={n: m for n, m in methods(10, (0.0, 0.1, 1.0, 10.0, math.inf)).items() if n in (LOCAL, FEDAVG, MEAN)},
    epsilons=(8.0, math.inf),
    model=ModelChoice("cnn", (8, 16)),
    level="example",
    delta=1e-4,
    rounds=10,
    batch=50,
    seeds=2,
    options={"choice_score": "error"},
    choosing=CHOOSING,
)


def few_cifar(seed: int) -> Federation:
    """Six silos of five classes, 150 images for training in each."""
    return cut(cifar10(silos=6, classes=5), 150, 200)


def small(setting: Comparison, size: Size) -> Comparison:
    """The setting; for a cell, few methods, rounds, strengths and seeds, and a linear model of images."""
    if size != "cell":
        return setting
    kept_methods = {
        n: replace(m, strengths=m.strengths[1:2]) for n, m in setting.methods.items() if n in (FEDAVG, MEAN)
    }
    data, model = setting.data, setting.model
    if model.name in ("cnn", "softmax"):
        data, model = _seeded(partial(rotated_mnist, silos=4, train_rows=60, test_rows=20)), ModelChoice("softmax")
    return replace(
        setting, methods=kept_methods, model=model, data=data, epsilons=setting.epsilons[:1], rounds=4, seeds=1
    )


def _seeded(load: Any) -> Any:
    return lambda seed: load(seed=seed)


def budget(setting: Comparison) -> str:
    about = f"example level, delta {setting.delta:g}, clip {setting.clip:g}, step {setting.step_size:g}"
    return f"{about}, {setting.rounds} rounds of one epoch, batches of {setting.batch}"


def measured(found: Compared, words: str, setting: Comparison, *, stand_in: bool = False, note: str = "") -> Measured:
    """What comparing gave, with its setting in words."""
    return Measured(found.curves, words, setting.seeds, budget(setting), stand_in, note, strengths=found.strengths)


SCHOOL_FULL = replace(
    SCHOOL,
    epsilons=(1.5, 3.0, 6.0, 12.0),
    seeds=5,
)
SCHOOL_WORDS = "School: 139 schools, features standardised by each school (as published)"


def figure_3a(size: Size) -> Measured:
    setting, words, note = of_vehicle(size)
    return figure_3(setting, words, size, note=note)


def figure_3(setting: Comparison, words: str, size: Size, *, stand_in: bool = False, note: str = "") -> Measured:
    if size == "full" and setting is SCHOOL:
        setting = SCHOOL_FULL
    setting = small(setting, "cell" if stand_in and size == "quick" else size)
    notes = [f"{THEIR_CLUSTERS} {AFTERWARDS}"] * (FORMED in setting.methods) + [note] * bool(note)
    return measured(compare(setting), words, setting, stand_in=stand_in, note=" ".join(notes))


def gleam_or_like(size: Size) -> Measured:
    """GLEAM where its file is; else made silos stand in."""
    if kept(GLEAM_SOURCE) is None:
        return figure_3(GLEAM, "a stand-in for GLEAM: 38 silos, 120 rows, 40 features", size, stand_in=True)
    return figure_3(replace(GLEAM, data=lambda seed: gleam(seed=seed)), "GLEAM: 38 silos", size)


def cifar(size: Size) -> Measured:
    """CIFAR-10 where its file is; else MNIST's pictures stand in."""
    if kept(SOURCE) is None:
        made = small(replace(MNIST, methods=CIFAR.methods), size)
        return measured(compare(made), "rotated MNIST as a stand-in for CIFAR-10", made, stand_in=True)
    if size == "full":
        raise ElsewhereError("cifar10")
    words = "CIFAR-10: 6 silos of 5 classes, 150 images for training in each, a small CNN"
    return figure_3(CIFAR, words, size)


def of_vehicle(size: Size) -> tuple[Comparison, str, str]:
    """The setting, which rows of Vehicle are here, and what to know of both."""
    setting, about = (VEHICLE_FULL, VEHICLE_THEIRS) if size == "full" else (VEHICLE, VEHICLE_OURS)
    path = kept(VEHICLE_SOURCE)
    if path is not None and path.stem == VEHICLE_SOURCE.name:
        return setting, "Vehicle: 23 sensors", about
    return setting, PART, f"{about} {FEW}"


PART = "the part of Vehicle in Ditto's repository: 1860 of 43 695 rows, 23 sensors with 5 to 400 rows for training"


AFTERWARDS = "IFCA's clients use their cluster's model after one more local epoch, as our `ifca` does."
THEIR_CLUSTERS = (
    "How many clusters IFCA has, and 0.03 of epsilon for a choice, are as in the authors' code; the text does not say."
)
VEHICLE_THEIRS = (
    "Rounds, batches, clip and steps are those of the authors' code (of three steps that it tries, the largest); the "
    "text gives none of them."
)
VEHICLE_OURS = "Rounds, clip and steps are ours."
FEW = "A sensor has a 23rd of its rows here, too few to train on alone: with all of them it may be otherwise."


def figure_2(size: Size) -> Measured:
    """Local training, FedAvg and fine-tuning over epsilon."""
    setting, words, note = of_vehicle(size)
    setting = replace(setting, methods={name: setting.methods[name] for name in (LOCAL, FEDAVG, TUNE)})
    if size == "cell":
        setting = replace(setting, epsilons=(2.0,), rounds=4, seeds=1)
    return measured(compare(setting), words, setting, note=note)


NEEDS = {
    BASE: ("mean_regularized", {}),
    DITTO: ("ditto", {}),
    FIRST: ("ifca", {"choosing_rounds": 6}),
    ALWAYS: ("ifca", {"choosing_rounds": 60}),
}
"""Figure 4's methods, for 60 rounds."""


def figure_4(size: Size) -> Measured:
    """The noise that each method needs for the same guarantee: the median over schools."""
    sizes = school().train.sizes[::14]
    names = np.repeat([f"school-{k}" for k in range(len(sizes))], sizes)
    data = [from_rows(np.zeros((len(names), 1), np.float32), np.zeros(len(names), np.float32), names, test_fraction=0)]
    rounds, curves = 60, {}
    for name, (method, options) in NEEDS.items():
        curves[name] = []
        for epsilon in (4.0,) if size == "cell" else (2.0, 4.0, 8.0):
            level = example_level(epsilon, 1e-4, choice_epsilon=CHOOSING * epsilon)
            phases = (Phase(method, rounds, options),)
            job = prepare(Experiment(seed=0, training=Training(batch_size=32), privacy=level, phases=phases), data)
            noise = np.asarray(job.terms.data.noise_multiplier, float).ravel()
            curves[name].append(Point(epsilon, round(float(np.median(noise)), 4)))
    words = f"sizes of {len(sizes)} of School's 139 schools: no row is looked at"
    always, ditto = (", ".join(f"{100 * share:.0f} %" for share in extra(curves, name)) for name in (ALWAYS, DITTO))
    return Measured(
        curves,
        words,
        1,
        f"example level, delta 1e-4, {rounds} rounds of one epoch, batches of 32, 0.03 of epsilon for a choice (as in "
        "the authors' code; the paper's own setting is not in its text)",
        note=f"Choosing in every round takes {always} more noise, Ditto {ditto}: whether the first is prohibitive is "
        "for others to say.",
    )


def extra(curves: Curves, name: str) -> list[float]:
    """How much more noise a method needs than one that looks at the data once, at every epsilon."""
    return [own / base - 1 for own, base in zip(means(curves, name), means(curves, BASE), strict=True)]


STRENGTH_AT = 0.5
"""The epsilon of figure 5, from its caption."""


def figure_5(size: Size) -> Measured:
    """MR-MTL and Ditto over the strength, with and without privacy."""
    strengths = (0.1, 1.0) if size == "cell" else WIDE[1:-1]
    swept = {MEAN: Method("mean_regularized", PRINTED, strengths), DITTO: Method("ditto", PRINTED, strengths)}
    setting, words, note = of_vehicle(size)
    ends = {name: setting.methods[name] for name in (LOCAL, FEDAVG)}
    setting = replace(setting, methods=ends, epsilons=(STRENGTH_AT, math.inf))
    if size == "cell":
        setting = replace(setting, epsilons=(STRENGTH_AT,), rounds=4, seeds=1)
    curves = by_strength(setting, swept)
    edges = [name for name, points in curves.items() if name.split(", ")[0] in swept and at_edge(points)]
    said = [note, *(f"Of the strengths tried, an end is best for {name}." for name in edges)]
    return Measured(curves, words, setting.seeds, budget(setting), note=" ".join(said))


def at_edge(points: Sequence[Point]) -> bool:
    """Whether a curve's highest point is its first or its last."""
    return max(points, key=lambda point: point.mean) in (points[0], points[-1])


MASKS = {"a": 0, "b": 40, "c": 80, "d": 120}
"""How many of the 196 patches are white: 0, 20, 41 and 61 %; the paper's text does not say."""


def figure_6(masks: int, size: Size) -> Measured:
    if size == "full":
        raise ElsewhereError("mnist")
    data = partial(rotated_mnist, masks=masks, silos=8, train_rows=500, test_rows=200)
    setting = small(replace(MNIST, data=_seeded(data)), size)
    words = f"MNIST: 8 silos of 500 images, 4 rotations, {masks} of 196 patches white, a linear model"
    return measured(compare(setting), words, setting, note=f"{OURS_6} {AFTERWARDS}")


MASKS_OURS = (
    "The shares of masks are ours. Epsilon, delta, clip, rounds, batches and steps are those of the authors' code, and "
    "so is the network; the text gives none of them."
)
OURS_6 = "Epsilon, delta, rounds, the shares of masks and the model are ours: small runs have a linear one."


TAUS = {"a": 0.03, "b": 0.08, "c": 0.2}
SHAPES = {"eta -0.5": -0.5, "eta 0": 0.0, "eta 1": 1.0, "eta 5": 5.0, "Poisson": POISSON}


def figure_7(tau: float, size: Size) -> Measured:
    """Exact: errors of mean estimation over the strength, with the noise that tuning asks for."""
    shapes = dict(list(SHAPES.items())[:1]) if size == "cell" else SHAPES
    noises = {"non-private": 0.0, "private": noise_for(0.25, 1e-5)}
    noises |= {f"private, tuned, {name}": noise_for(0.25, 1e-5, mean=10, shape=shape) for name, shape in shapes.items()}
    strengths = (0.0, *np.geomspace(0.01, 1000, 26).tolist(), math.inf)
    curves = {
        name: [Point(min(max(s, 1e-3), 1e4), round(Problem(20, 200, 0.4, tau, noise).error(s), 8)) for s in strengths]
        for name, noise in noises.items()
    }
    return Measured(curves, "none: closed forms", 1, "20 clients, 200 examples, sigma 0.4, epsilon 0.25, delta 1e-5")


def outweighed(curves: Curves) -> bool:
    """Whether some way of tuning has its lowest error above an end of the private curve."""
    ends = min(means(curves, "private")[0], means(curves, "private")[-1])
    return any(min(means(curves, name)) > ends for name in curves if "tuned" in name)
