"""Heart disease (4 hospitals), breast cancer (6 regions) and Parkinson's telemonitoring (42 patients).

Features are scaled by bounds that were chosen from units and medicine, not from the rows; what lies outside is clipped.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kinfolk import limits
from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.given_rows import check_number
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.source import Arrays, Facts, File, Source
from kinfolk.data.target import Target

BOUNDS = "declared bounds"


def within(x: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    """Values between bounds as numbers from 0 to 1; a missing one is in the middle."""
    return np.nan_to_num(np.clip((x - low) / (np.asarray(high) - low), 0, 1), nan=0.5).astype(np.float32)


def number(word: str) -> float:
    """A number, or NaN for the signs of a missing one."""
    return float("nan") if word.strip() in ("?", "", "-9", "-9.0") else float(word)


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEART_COLUMNS = {
    "age": (20, 90),
    "sex": (0, 1),
    "cp": (1, 4),
    "trestbps": (80, 200),
    "chol": (100, 600),
    "fbs": (0, 1),
    "restecg": (0, 2),
    "thalach": (60, 220),
    "exang": (0, 1),
    "oldpeak": (-3, 7),
    "slope": (1, 3),
    "ca": (0, 3),
    "thal": (3, 7),
}


def heart_from_files(files: Sequence[Path]) -> Arrays:
    """From the four hospitals' files of comma-separated numbers, with or without a line of names."""
    x, y, client = [], [], []
    given = [path.name for path in files]
    if missing := [f"processed.{name}.data" for name in HOSPITALS if not any(name in file for file in given)]:
        raise DataError(f"{', '.join(missing)} is missing: give the files of all four hospitals, by their own names")
    for path in files:
        hospital = next((k for k, name in enumerate(HOSPITALS) if name in path.name), None)
        if hospital is None:
            raise DataError(f"{path.name} is of none of the hospitals {HOSPITALS}: keep the files' own names")
        for line in csv.reader(path.read_text().splitlines()):
            if len(line) == len(HEART_COLUMNS) + 1 and not line[0].strip().isalpha():
                x.append([number(word) for word in line[:-1]])
                y.append(int(float(line[-1])))
                client.append(hospital)
        if hospital not in client[-1:]:
            raise DataError(f"{path.name} has no row of {len(HEART_COLUMNS) + 1} values: fetch it again")
    order = np.argsort(client, kind="stable")
    return {
        "x": np.array(x, np.float32)[order],
        "y": np.array(y, np.uint8)[order],
        "client": np.array(client, np.int32)[order],
        "client_name": np.array(HOSPITALS),
        "feature_name": np.array(list(HEART_COLUMNS)),
    }


UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
HEART = Source(
    name="heart_disease",
    title="heart disease or not, 920 patients with 13 attributes; 4 hospitals",
    home="https://archive.ics.uci.edu/dataset/45/heart+disease",
    licence="CC BY 4.0",
    files=tuple(File(f"processed.{name}.data", f"{UCI}/heart-disease/processed.{name}.data") for name in HOSPITALS),
    convert=heart_from_files,
    facts=Facts(gaps=True),
    checksum="f06fce3974f61e0a3c0cfb1d3e8d0d547495bae63884a12c03f2d9af5832836d",
)


def heart_disease(*, test_fraction: float = 0.2, seed: int = 0, directory: str | None = None) -> Federation:
    """One client per hospital; the target is whether there is any disease. Of each attribute that can be missing (a
    cholesterol of 0 is) a column says so."""
    arrays = load_arrays(HEART, directory)
    x = arrays["x"].astype(np.float32)
    places = list(HEART_COLUMNS)
    x[:, places.index("chol")] = np.where(x[:, places.index("chol")] == 0, np.nan, x[:, places.index("chol")])
    low, high = np.array(list(HEART_COLUMNS.values()), np.float32).T
    missing = np.isnan(x[:, 3:]).astype(np.float32)
    return from_rows(
        np.concatenate([within(x, low, high), missing], axis=1),
        (arrays["y"] > 0).astype(np.int32),
        np.array(HOSPITALS)[arrays["client"]],
        test_fraction=test_fraction,
        seed=seed,
        name="heart_disease",
        outcome="binary",
        scaling=BOUNDS,
        grouping="hospital",
    )


REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")


def brca_from_files(files: Sequence[Path]) -> Arrays:
    """From FLamby's `brca.csv` and `train_test_split.csv`; patients whom the latter does not name are left out."""
    by_name = {path.name: path for path in files}
    if not {"brca.csv", "train_test_split.csv"} <= set(by_name):
        raise DataError("brca.csv and train_test_split.csv are both needed: keep the files' own names")
    folds = {
        line["pid"]: line["fold2"] for line in csv.DictReader(by_name["train_test_split.csv"].read_text().splitlines())
    }
    names, *lines = list(csv.reader(by_name["brca.csv"].read_text().splitlines()))
    lines = [line for line in lines if line[0] in folds]
    half, region = np.array([folds[line[0]].split("_") for line in lines]).T
    values = np.array([[float(word) for word in line[1:]] for line in lines], np.float32)
    return {
        "x": values[:, :-2],
        "event": values[:, -2].astype(np.uint8),
        "time": values[:, -1],
        "client": region.astype(np.int32),
        "client_name": np.array(REGIONS),
        "is_test": half == "test",
        "feature_name": np.array(names[1:-2]),
    }


FLAMBY = "https://github.com/owkin/FLamby/raw/main/flamby/datasets/fed_tcga_brca"
BRCA = Source(
    name="tcga_brca",
    title="survival of 1088 patients with breast cancer, 39 clinical features; 6 regions",
    home="https://github.com/owkin/FLamby",
    licence="open-access clinical data of the Genomic Data Commons",
    files=(
        File("brca.csv", f"{FLAMBY}/brca.csv"),
        File("train_test_split.csv", f"{FLAMBY}/dataset_creation_scripts/train_test_split.csv"),
    ),
    convert=brca_from_files,
    needs=("x", "event", "time", "client", "is_test"),
    checksum="9a4ce5bffe5ce657c3f5fdaf568ac02c3a4dbdcc4318065b69aafd41c2bdbafd",
)


YEARS = limits.above(0, 100, "it is the time in which a patient died or not; the set has 24 years")


def tcga_brca(*, years: float = 3.0, seed: int = 0, directory: str | None = None) -> Federation:
    """One client per region, with FLamby's split: whether a patient died within `years`.

    Patients who were last seen alive before that are left out: nobody knows. The file has times and events.
    """
    check_number("years", years, YEARS)
    arrays = load_arrays(BRCA, directory)
    died = (arrays["event"] == 1) & (arrays["time"] <= 365.25 * years)
    known = died | (arrays["time"] > 365.25 * years)
    x = arrays["x"].astype(np.float32).copy()
    x[:, 0] = within(x[:, 0], 20, 90)
    return from_rows(
        x[known],
        died[known].astype(np.int32),
        np.array(REGIONS)[arrays["client"][known]],
        test=arrays["is_test"][known].astype(bool),
        seed=seed,
        name="tcga_brca",
        outcome="binary",
        scaling=BOUNDS,
        grouping="region",
    )


UPDRS = 176.0
"""The highest value of the scale."""
VOICE = {
    "age": (30, 90),
    "sex": (0, 1),
    "test_time": (0, 200),
    "Jitter(%)": (0, 0.02),
    "Jitter(Abs)": (0, 0.0002),
    "Jitter:RAP": (0, 0.015),
    "Jitter:PPQ5": (0, 0.015),
    "Jitter:DDP": (0, 0.045),
    "Shimmer": (0, 0.1),
    "Shimmer(dB)": (0, 1),
    "Shimmer:APQ3": (0, 0.05),
    "Shimmer:APQ5": (0, 0.06),
    "Shimmer:APQ11": (0, 0.08),
    "Shimmer:DDA": (0, 0.15),
    "NHR": (0, 0.4),
    "HNR": (5, 35),
    "RPDE": (0, 1),
    "DFA": (0.5, 1),
    "PPE": (0, 0.6),
}


def parkinsons_from_file(files: Sequence[Path]) -> Arrays:
    """From UCI's `parkinsons_updrs.data`."""
    lines = list(csv.DictReader(files[0].read_text().splitlines()))
    return {
        "x": np.array([[float(line[name]) for name in VOICE] for line in lines], np.float32),
        "y": np.array([float(line["total_UPDRS"]) for line in lines], np.float32),
        "client": np.array([int(line["subject#"]) for line in lines], np.int32) - 1,
        "feature_name": np.array(list(VOICE)),
    }


PARKINSONS = Source(
    name="parkinsons",
    title="severity of Parkinson's (UPDRS) from 19 features of speech; 42 patients",
    home="https://archive.ics.uci.edu/dataset/189/parkinsons+telemonitoring",
    licence="CC BY 4.0",
    files=(File("parkinsons_updrs.data", f"{UCI}/parkinsons/telemonitoring/parkinsons_updrs.data"),),
    convert=parkinsons_from_file,
    checksum="a57b8072331eda37d760f4e79f8a4421cbb30093a92b424c843b154be3f75473",
)


def parkinsons(*, test_fraction: float = 0.2, seed: int = 0, directory: str | None = None) -> Federation:
    """One client per patient; the target is the total score over the scale's 176."""
    arrays = load_arrays(PARKINSONS, directory)
    low, high = np.array(list(VOICE.values()), np.float32).T
    found = from_rows(
        within(arrays["x"], low, high),
        (arrays["y"] / UPDRS).astype(np.float32),
        np.char.add("patient-", np.char.zfill(arrays["client"].astype(str), 2)),
        test_fraction=test_fraction,
        seed=seed,
        name="parkinsons",
        scaling=BOUNDS,
        grouping="patient",
    )
    return replace(found, target=Target("total_UPDRS", "points", low=0, high=UPDRS, scaled_low=0, scaled_high=1))
