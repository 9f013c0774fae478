"""Full runs: packed, run in sittings and taken home, on small files of the same form."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.studies.reproduce import full_femnist, full_runs
from benchmarks.studies.reproduce.comparison import ends, figures, trained
from benchmarks.studies.reproduce.cross_silo_measures import MEAN, WARM, methods
from benchmarks.studies.reproduce.files import of_record
from benchmarks.studies.reproduce.full_data import evenly
from benchmarks.studies.reproduce.full_settings import MNIST_FULL, SAME, STUDIES, tiny
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.sets import mnist
from kinfolk.training.experiment import ModelChoice
from tests.papers.loading import need

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with small files in place of School, MNIST, CIFAR-10 and FEMNIST."""
    draw = np.random.default_rng(0)
    place = tmp_path / "data"
    place.mkdir()
    rows = 150
    images = {"y": np.arange(rows) % 10, "client": np.zeros(rows, np.int32), "is_test": np.arange(rows) >= 100}
    np.savez(place / "mnist.npz", x=draw.integers(0, 256, (rows, 28, 28), np.uint8), **images)
    np.savez(place / "cifar10.npz", x=draw.integers(0, 256, (rows, 32, 32, 3), np.uint8), **images)
    writer = np.repeat(np.arange(30), [20] * 20 + [50] * 10)  # unequal, as they are
    written = {"y": np.arange(900) % 62, "client": writer, "is_test": np.arange(900) % 5 == 0}
    np.savez(place / "femnist.npz", x=draw.integers(0, 256, (900, 28, 28), np.uint8), **written)
    scores = {"y": draw.uniform(1, 70, rows).astype(np.float32), "client": np.arange(rows) % 5}
    np.savez(place / "school.npz", x=draw.normal(size=(rows, 28)).astype(np.float32), **scores)
    monkeypatch.setattr(mnist, "TRAIN", 100)
    monkeypatch.setattr("kinfolk.data.sets.download.other_checksum", lambda *_: "")  # they are not the published rows
    monkeypatch.setenv("KINFOLK_DATA", str(place))
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    "study",
    ["school", *(pytest.param(name, marks=pytest.mark.long) for name in ("mnist", "cifar10", "plain", "noise"))],
)
def test_a_tiny_setting_goes_all_the_way(study: str, files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    full_runs.pack(study, folder, small=True)
    files.rename(tmp_path / "gone")  # there, only the folder is at hand
    packed = json.loads((folder / "packed.json").read_text())
    assert full_runs.work(folder, seconds=0) in (len(packed["cells"]), len(packed["cells"]) - 1)  # a sitting ends early
    assert full_runs.work(folder) == 0
    found = {record["item"]: record for record in full_runs.records(folder)}
    assert set(found) == set(STUDIES[study])
    for item, full in STUDIES[study].items():
        record, setting, noises = found[item], tiny(full).setting, tiny(full).noises
        wanted = [f"{name}: {part}" for name in noises or () for part in ("loss", "accuracy", "epsilon")]
        assert set(record["curves"]) == set(wanted or setting.methods)
        points = len(ends(setting)) if noises else len(setting.epsilons)
        assert all(len(curve) == points for curve in record["curves"].values())
        assert record["machine"] in record["took"]
        assert of_record(record).seeds == setting.seeds


@pytest.mark.fast
def test_an_item_with_a_method_missing_is_not_taken_home(tmp_path: Path) -> None:
    item, full = next(iter(STUDIES["school"].items()))
    row = {"item": item, "method": "local", "epsilon": 6.0, "strength": None, "file": "cell0.npz"}
    (tmp_path / "packed.json").write_text(json.dumps({"study": "school", "small": False, "items": {}, "cells": [row]}))
    measured = {**row, "scores": [[0.1] * full.setting.seeds], "outcome": "number"}
    results = {"device": "a", "compile_seconds": 1, "rows": [{**measured, "run_seconds": 1}]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert full_runs.records(tmp_path) == []


@pytest.mark.slow
def test_methods_at_an_end_of_their_grid_are_another_one_to_the_last_bit() -> None:
    def drawn(seed: int) -> Federation:
        draw = np.random.default_rng(seed)
        names = np.repeat([f"silo-{k}" for k in range(6)], 40)
        return from_rows(draw.normal(size=(240, 3)), draw.integers(0, 3, 240), names, outcome="classes", classes=3)

    rounds = 4
    found = methods(rounds, (0.0, 1.0, math.inf))
    setting = replace(
        MNIST_FULL, methods=found, model=ModelChoice("softmax"), rounds=rounds, batch=8, seeds=2, delta=1e-3
    )
    data = [drawn(seed) for seed in range(2)]
    scores = {
        (name, strength): row
        for name, figure in figures(setting, found, 4.0, data)
        for strength, row in zip(found[name].strengths or (None,), trained(setting, figure, "classes"), strict=True)
    }
    assert len({float(scores[name, None][0]) for name in SAME.values()}) == len(SAME)
    for end, other in SAME.items():
        np.testing.assert_array_equal(scores[end], scores[other, None])


@pytest.mark.fast
def test_a_page_says_which_strengths_were_left_out() -> None:
    full = STUDIES["mnist"]["cross-silo/figure-6a"]
    row = {"item": "cross-silo/figure-6a", "epsilon": 1.0}
    ends = [{**row, "method": name, "strength": None} for name in SAME.values()]
    middle = [{**row, "method": MEAN, "strength": 1.0}, {**row, "method": WARM, "strength": 1.0}]
    said = full_runs.fewer(full, ends + middle)
    assert said == f"{MEAN} was run with strengths 0, 1, infinite only. {WARM} was run with strength 1 only."
    every = [
        {**row, "method": name, "strength": s} for name in (MEAN, WARM) for s in full.setting.methods[name].strengths
    ]
    assert not full_runs.fewer(full, every)


@pytest.mark.fast
def test_strengths_near_one_are_run_first_and_the_ends_last() -> None:
    grid = [0.0, 0.1, 1.0, 30.0, math.inf, None]
    assert sorted(grid, key=full_runs.far) == [1.0, None, 0.1, 30.0, 0.0, math.inf]


@pytest.mark.fast
def test_images_that_travel_are_of_every_class_and_part() -> None:
    labels, is_test = np.arange(200) % 10, np.arange(200) >= 100
    kept = evenly(labels, is_test, 100)
    assert len(kept) == 100
    assert np.bincount(labels[kept]).tolist() == [10] * 10
    assert is_test[kept].sum() == 50


@pytest.mark.long
def test_femnist_goes_all_the_way(tmp_path: Path) -> None:
    need("femnist.npz")
    rows = full_femnist.tried(tmp_path)
    assert {row["part"] for row in rows} >= {"choose", "chosen", "figure", "tune"}
