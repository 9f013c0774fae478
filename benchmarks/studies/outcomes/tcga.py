"""TCGA-BRCA: survival of breast cancer patients in six regions, with the source's fixed split (Fed-TCGA-BRCA, FLamby).

Three columns of the clinical record are made of its 39 indicator columns, all by rules that look at no row: age, the
stage as a number (the ordered scale that it is: I 1, IIA 2, IIB 2.5, IIIA 3, IIIC 3.5; stages without a column of their
own, IIIB, IV and X, count as 3.5), and whether there was treatment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kinfolk import Federation, courses, from_rows

YEAR = 365.25
EDGES = tuple(years * YEAR for years in (1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0))
"""Where intervals end, in days."""
STAGES = {"Stage IA": 1.0, "Stage IIA": 2.0, "Stage IIB": 2.5, "Stage IIIA": 3.0, "Stage IIIC": 3.5}
OTHER_STAGE = 3.5
FEATURES = {"few": ("age", "stage", "treated"), "all": ()}


@dataclass(frozen=True)
class Patients:
    """Everybody, in the order of the file."""

    x: np.ndarray
    names: tuple[str, ...]
    time: np.ndarray
    event: np.ndarray
    region: np.ndarray
    is_test: np.ndarray


def patients() -> Patients:
    """The file in KINFOLK_DATA."""
    with np.load(Path(os.environ["KINFOLK_DATA"]) / "tcga_brca.npz") as file:
        return Patients(
            file["x"].astype(np.float64),
            tuple(file["feature_name"].tolist()),
            file["time"].astype(np.float64),
            file["event"].astype(bool),
            file["client_name"][file["client"]],
            file["is_test"].astype(bool),
        )


def features(found: Patients, which: str) -> np.ndarray:
    """Three columns (`few`), or all 39 (`all`); numbers between -1 and 1 by bounds that are known without looking."""
    column = {name: found.x[:, k] for k, name in enumerate(found.names)}
    age = np.clip((column["age_at_index"] - 60) / 40, -1, 1)
    if which == "all":
        return np.column_stack([age, found.x[:, 1:]]).astype(np.float32)
    known = column["tumor_stage_stage i"] + sum(column[f"ajcc_pathologic_stage_{name}"] for name in STAGES)
    stage = column["tumor_stage_stage i"] + OTHER_STAGE * (known == 0)
    stage = stage + sum(value * column[f"ajcc_pathologic_stage_{name}"] for name, value in STAGES.items())
    treated = 2 * column["treatment_or_therapy_yes"] - 1
    return np.column_stack([age, (stage - 2.25) / 1.25, treated]).astype(np.float32)


def federation(found: Patients, which: str, test: np.ndarray | None = None) -> Federation:
    """Regions as clients; `test`: other test rows than the source's, of its training part."""
    keep = np.ones(len(found.time), bool) if test is None else ~found.is_test
    x, y = features(found, which)[keep], courses(found.time, found.event, EDGES)[keep]
    held = (found.is_test if test is None else test)[keep]
    return from_rows(
        x, y, found.region[keep], test=held, name="tcga_brca", outcome="survival", classes=len(EDGES), scaling="bounds"
    )
