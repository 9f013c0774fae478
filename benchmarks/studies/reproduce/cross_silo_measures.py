"""The tables and figures of Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning;
example level.

School and MNIST are run; of Vehicle only the part on which Ditto trains can be had, CIFAR-10 where its file is, and
GLEAM's panel runs on a stand-in. Budgets are those of the paper where its text names them.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.reproduce.comparison import Compared, Comparison, Method, by_strength, compare
from benchmarks.studies.reproduce.full_data import cut
from benchmarks.studies.reproduce.records import Curves, ElsewhereError, Measured, Size, means
from benchmarks.studies.reproduce.stand_ins import like_gleam
from kinfolk.data.federation import Federation
from kinfolk.data.sets.catalogue import BUILT_IN
from kinfolk.data.sets.cifar import SOURCE, cifar10
from kinfolk.data.sets.download import kept
from kinfolk.data.sets.mnist import rotated_mnist
from kinfolk.data.sets.school import school
from kinfolk.data.sets.silos import vehicle
from kinfolk.privacy.levels import example_level
from kinfolk.theory.mean_estimation import Problem
from kinfolk.theory.tuning import POISSON, noise_for
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import prepare

LOCAL, FEDAVG, MEAN, TUNE, DITTO = "local", "FedAvg", "MR-MTL", "local fine-tuning", "Ditto"
MOCHA, IFCA, WARM = "Mocha", "IFCA (10%)", "MR-MTL (IFCA 10%)"


PRINTED = {"pull": "step"}
"""As the papers print it: the pull is part of every local step."""


def methods(rounds: int, strengths: tuple[float, ...], clusters: int = 0) -> dict[str, Method]:
    """The paper's methods; fine-tuning begins in the middle. Strength 0 is training alone, infinity is averaging."""
    found = {
        LOCAL: Method("local"),
        FEDAVG: Method("fedavg"),
        TUNE: Method("fine_tune", {"shared_rounds": max(1, rounds // 2)}),
        DITTO: Method("ditto", PRINTED, strengths),
        MEAN: Method("mean_regularized", PRINTED, strengths),
    }
    if clusters:
        choosing = {"choosing_rounds": max(2, rounds // 10), "clusters": clusters}
        found |= {IFCA: Method("ifca", choosing), WARM: Method("ifca", {**choosing, **PRINTED}, strengths)}
    return found


STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
WIDE = (0.0, *STRENGTHS, 100.0, 1e3, math.inf)
SCHOOL = Comparison(
    data=lambda seed: school(scaling="as_published", seed=seed),
    methods={
        **methods(201, (0.0, *STRENGTHS, math.inf)),
        MOCHA: Method("mocha", PRINTED, (0.0, 0.3, 1.0, 3.0, 10.0, 100.0)),
    },
    epsilons=(1.5, 3.0, 6.0),
    level="example",
    rounds=201,
    step_size=0.01,
    weights="size",
    seeds=2,
)
VEHICLE = Comparison(
    data=lambda seed: vehicle(seed=seed),
    methods=methods(30, WIDE),
    epsilons=(0.5, 2.0, 8.0, math.inf),
    model=ModelChoice("logistic"),
    level="example",
    delta=1e-7,
    rounds=30,
    batch=64,
    step_size=0.1,
    seeds=5,
)
GLEAM = replace(
    VEHICLE, data=like_gleam, epsilons=(0.5, 1.5, 4.0, math.inf), rounds=15, methods=methods(15, (1.0, 10.0)), seeds=2
)
MNIST = Comparison(
    data=lambda seed: rotated_mnist(silos=8, train_rows=500, test_rows=200, seed=seed),
    methods={
        n: m
        for n, m in methods(20, (0.0, 0.01, 0.03, 0.1, 1.0, math.inf), clusters=4).items()
        if n not in (TUNE, DITTO)
    },
    epsilons=(4.0,),
    model=ModelChoice("softmax"),
    level="example",
    delta=1e-5,
    rounds=20,
    batch=50,
    seeds=2,
    options={"choice_epsilon": 0.03, "choice_score": "error"},
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


def figure_3(setting: Comparison, words: str, size: Size, *, stand_in: bool = False) -> Measured:
    if size == "full" and setting is SCHOOL:
        setting = SCHOOL_FULL
    setting = small(setting, "cell" if stand_in and size == "quick" else size)
    return measured(compare(setting), words, setting, stand_in=stand_in, note=FEW if words == PART else "")


def cifar(size: Size) -> Measured:
    """CIFAR-10 where its file is; else MNIST's pictures stand in."""
    if kept(SOURCE) is None:
        made = small(replace(MNIST, methods=CIFAR.methods), size)
        return measured(compare(made), "rotated MNIST as a stand-in for CIFAR-10", made, stand_in=True)
    if size == "full":
        raise ElsewhereError("cifar10")
    words = "CIFAR-10: 6 silos of 5 classes, 150 images for training in each, a small CNN"
    return figure_3(CIFAR, words, size)


PART = "the part of Vehicle on which Ditto trains: 1860 of 43 695 rows, 23 sensors with 5 to 400 rows for training"


FEW = "A sensor has a thirtieth of its rows here, too few to train on alone: with all of them it may be otherwise."


def figure_2(size: Size) -> Measured:
    """Local training, FedAvg and fine-tuning over epsilon."""
    chosen = {name: VEHICLE.methods[name] for name in (LOCAL, FEDAVG, TUNE)}
    setting = replace(VEHICLE, methods=chosen)
    if size == "cell":
        setting = replace(setting, epsilons=(2.0,), rounds=4, seeds=1)
    return measured(compare(setting), PART, setting, note=FEW)


def figure_4(size: Size) -> Measured:
    """The noise that each method needs for the same guarantee."""
    data = [BUILT_IN["synthetic_schools"].load(clients=10)]
    rounds, curves = 60, {}
    overheads = {
        "local, FedAvg, MR-MTL": ("mean_regularized", {}),
        DITTO: ("ditto", {}),
        "IFCA, choosing in the first 10 %": ("ifca", {"choosing_rounds": 6}),
        "IFCA, choosing in every round": ("ifca", {"choosing_rounds": 60}),
    }
    for name, (method, options) in overheads.items():
        curves[name] = []
        for epsilon in (4.0,) if size == "cell" else (2.0, 4.0, 8.0):
            level = example_level(epsilon, 1e-4, choice_epsilon=0.03)
            phases = (Phase(method, rounds, options),)
            job = prepare(Experiment(seed=0, training=Training(batch_size=32), privacy=level, phases=phases), data)
            noise = np.asarray(job.terms.data.noise_multiplier, float).ravel()
            curves[name].append((epsilon, round(float(np.median(noise)), 4), 0.0))
    words = "sizes of ten made schools: no row is looked at"
    return Measured(curves, words, 1, f"example level, delta 1e-4, {rounds} rounds of one epoch, batches of 32")


def figure_5(size: Size) -> Measured:
    """MR-MTL and Ditto over the strength, with and without privacy."""
    strengths = (0.1, 1.0) if size == "cell" else WIDE[1:-1]
    swept = {MEAN: Method("mean_regularized", PRINTED, strengths), DITTO: Method("ditto", PRINTED, strengths)}
    ends = {name: VEHICLE.methods[name] for name in (LOCAL, FEDAVG)}
    setting = replace(VEHICLE, methods=ends, epsilons=(2.0, math.inf))
    if size == "cell":
        setting = replace(setting, epsilons=(2.0,), rounds=4, seeds=1)
    return Measured(by_strength(setting, swept), PART, setting.seeds, budget(setting), note=FEW)


MASKS = {"a": 0, "b": 40, "c": 80, "d": 120}
"""How many of the 196 patches are white: 0, 20, 41 and 61 %; the paper's text does not say."""
MNIST_H200 = Path(__file__).parents[1] / "mnist" / "results" / "h200.json"
MNIST_NAMES = {
    LOCAL: "local",
    FEDAVG: "FedAvg",
    DITTO: "Ditto, strength 1",
    MEAN: "mean-regularised, strength 1",
    IFCA: "IFCA",
    WARM: "IFCA, then mean-regularised",
}


def figure_6_in_full(masks: int) -> Measured:
    """What the mnist study measured on an accelerator; levels that it left out are for `full_runs`."""
    found = json.loads(MNIST_H200.read_text())
    rows = {row["method"]: row["accuracy"] for row in found["rows"] if row["masks"] == masks}
    if not rows:
        raise ElsewhereError("mnist")
    return Measured(
        {name: [(1.0, rows[own], 0.0)] for name, own in MNIST_NAMES.items()},
        f"MNIST: 40 silos of 1500 images, 4 rotations, {masks} of 196 patches white, a CNN",
        found["seeds"],
        "example level, epsilon 1, delta 1e-7, clip 1, step 0.1, 100 rounds of one epoch, batches of 100, strength 1",
        note="Means over seeds; the study kept no spread.",
        took=f"Measured by the mnist study on one {found['device']}: 322 s of running for two mask levels.",
        machine=found["device"],
    )


def figure_6(masks: int, size: Size) -> Measured:
    if size == "full":
        return figure_6_in_full(masks)
    data = partial(rotated_mnist, masks=masks, silos=8, train_rows=500, test_rows=200)
    setting = small(replace(MNIST, data=_seeded(data)), size)
    words = f"MNIST: 8 silos of 500 images, 4 rotations, {masks} of 196 patches white, a linear model"
    return measured(compare(setting), words, setting)


TAUS = {"a": 0.03, "b": 0.08, "c": 0.2}
SHAPES = {"eta -0.5": -0.5, "eta 0": 0.0, "eta 1": 1.0, "eta 5": 5.0, "Poisson": POISSON}


def figure_7(tau: float, size: Size) -> Measured:
    """Exact: errors of mean estimation over the strength, with the noise that tuning asks for."""
    shapes = dict(list(SHAPES.items())[:1]) if size == "cell" else SHAPES
    noises = {"non-private": 0.0, "private": noise_for(0.25, 1e-5)}
    noises |= {f"private, tuned, {name}": noise_for(0.25, 1e-5, mean=10, shape=shape) for name, shape in shapes.items()}
    strengths = (0.0, *np.geomspace(0.01, 1000, 26).tolist(), math.inf)
    curves = {
        name: [(min(max(s, 1e-3), 1e4), round(Problem(20, 200, 0.4, tau, noise).error(s), 8), 0.0) for s in strengths]
        for name, noise in noises.items()
    }
    return Measured(curves, "none: closed forms", 1, "20 clients, 200 examples, sigma 0.4, epsilon 0.25, delta 1e-5")


def outweighed(curves: Curves) -> bool:
    """Whether some way of tuning has its lowest error above an end of the private curve."""
    ends = min(means(curves, "private")[0], means(curves, "private")[-1])
    return any(min(means(curves, name)) > ends for name in curves if "tuned" in name)


def best_inside(curves: Curves, name: str, ends: tuple[str, str]) -> bool:
    values = means(curves, name)
    return max(values) > max(means(curves, end)[0] for end in ends)
