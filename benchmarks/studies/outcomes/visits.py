"""Visits of patients with diabetes: 4 999 of 4 259 patients, a part of the UCI set "Diabetes 130-US hospitals" (Strack
et al., 2014), as in github leninanthony/uasb_analytics, diabetic_data.csv, which KINFOLK_DATA must hold. Clients are
medical specialties, the small ones together. Bounds are those that the set's description gives.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BOUNDS = {
    "num_lab_procedures": (0, 132),
    "num_procedures": (0, 6),
    "num_medications": (0, 81),
    "number_outpatient": (0, 10),
    "number_emergency": (0, 10),
    "number_inpatient": (0, 10),
    "number_diagnoses": (0, 16),
}
ADMISSIONS, SOURCES, DISCHARGES = ("1", "2", "3"), ("1", "7"), ("1", "3", "6")
CHAPTERS = {
    "circulatory": (*range(390, 460), 785),
    "respiratory": (*range(460, 520), 786),
    "digestive": (*range(520, 580), 787),
    "diabetes": (250,),
    "injury": tuple(range(800, 1000)),
    "musculoskeletal": tuple(range(710, 740)),
    "genitourinary": (*range(580, 630), 788),
    "neoplasms": tuple(range(140, 240)),
}
"""Of ICD-9, as the set's authors group them."""
FEWEST = 100
"""Visits of a specialty that is a client of its own; a public rule."""


@dataclass(frozen=True)
class Visits:
    """All visits, in the order of the file."""

    x: np.ndarray
    days: np.ndarray
    """In hospital, 1 to 14."""
    readmitted: np.ndarray
    chapters: np.ndarray
    """Which chapters of ICD-9 the three diagnoses are from."""
    specialty: np.ndarray
    patient: np.ndarray


def visits() -> Visits:
    """The file in KINFOLK_DATA."""
    with (Path(os.environ["KINFOLK_DATA"]) / "diabetic_data.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names, counts = np.unique([row["medical_specialty"] for row in rows], return_counts=True)
    large = set(names[counts >= FEWEST].tolist())
    return Visits(
        np.array([_features(row) for row in rows], np.float32),
        np.array([int(row["time_in_hospital"]) for row in rows]),
        np.array([row["readmitted"] != "NO" for row in rows]).astype(np.int32),
        np.array([_chapters(row) for row in rows], np.int32),
        np.array([row["medical_specialty"] if row["medical_specialty"] in large else "other" for row in rows]),
        np.array([row["patient_nbr"] for row in rows]),
    )


def _features(row: dict[str, str]) -> list[float]:
    """Numbers between -1 and 1."""
    found = [(int(row["age"].strip("[)").split("-")[0]) + 5 - 50) / 50, 1.0 if row["gender"] == "Female" else -1.0]
    for name, (low, high) in BOUNDS.items():
        found.append(float(np.clip(2 * (int(row[name]) - low) / (high - low) - 1, -1, 1)))
    found += [float(row["admission_type_id"] == code) for code in ADMISSIONS]
    found += [float(row["admission_source_id"] == code) for code in SOURCES]
    found += [float(row["discharge_disposition_id"] == code) for code in DISCHARGES]
    yes = (row["insulin"] != "No", row["diabetesMed"] == "Yes", row["change"] == "Ch", row["A1Cresult"] != "None")
    return found + [1.0 if one else -1.0 for one in yes]


def _chapters(row: dict[str, str]) -> list[bool]:
    codes = {int(float(row[name])) for name in ("diag_1", "diag_2", "diag_3") if row[name].replace(".", "").isdigit()}
    return [bool(codes & set(chapter)) for chapter in CHAPTERS.values()]
