"""Many runs with the same program as one parcel: sweep points are stacked, so that a figure is one compiled program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kinfolk import trees
from kinfolk.training import job_file, offload
from kinfolk.training.build import as_sweep
from kinfolk.training.prepare import Job


def stacked(job: Job, points: Sequence[tuple[Any, Any]]) -> job_file.Parcel:
    """The job's parcel with a sweep point for every pair of an algorithm and terms; one phase only."""
    algorithms, terms = ([as_sweep(part) for part in parts] for parts in zip(*points, strict=True))
    return replace(offload.parcel(job), algorithms=(trees.concatenate(algorithms),), terms=trees.concatenate(terms))


def pooled_error(parcel: job_file.Parcel, errors: np.ndarray) -> np.ndarray:
    """Test error over all rows together, per sweep point and seed, from clients' own."""
    rows = np.concatenate([np.asarray(block.mask).sum(axis=-1) for block in parcel.tests], axis=1)
    return (errors * rows).sum(axis=-1) / rows.sum(axis=-1)
