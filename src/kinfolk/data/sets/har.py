"""Human activity recognition by phone (Anguita et al., 2013): 30 people, 6 activities.

Read from `har_features.npz` (273 features that were derived from the raw windows, with a split inside each person)
where that is there; else the published table of 561 features, downloaded.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kinfolk.data.client_data import padded
from kinfolk.data.federation import DataError, Federation
from kinfolk.data.given_rows import drawing
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.source import Arrays, Facts, File, Source, whole


def from_zip(files: Sequence[Path]) -> Arrays:
    """From UCI's archive, which may hold another: features, activities and subjects of both halves."""
    with zipfile.ZipFile(files[0]) as outer:
        inner = [name for name in outer.namelist() if name.endswith(".zip")]
        content = outer.read(inner[0]) if inner else files[0].read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        places = {Path(name).name: name for name in archive.namelist() if "__MACOSX" not in name}
        if "X_train.txt" not in places:
            raise DataError(f"{files[0].name} has no X_train.txt: give {SOURCE.files[0].name}")
        x, y, subject = (
            [np.loadtxt(io.BytesIO(archive.read(places[f"{kind}_{half}.txt"])), ndmin=1) for half in HALVES]
            for kind in ("X", "y", "subject")
        )
    client = whole("client", np.concatenate(subject) - 1).astype(np.int32)
    order = np.argsort(client, kind="stable")
    official = np.repeat([False, True], [len(part) for part in y])
    return {
        "x": np.concatenate(x).astype(np.float32)[order],
        "y": whole("y", np.concatenate(y) - 1)[order],
        "client": client[order],
        "is_test_official": official[order],
    }


HALVES = ("train", "test")
SOURCE = Source(
    name="har",
    title="what a phone's wearer does (6) from 561 features of its motion; 30 people",
    home="https://archive.ics.uci.edu/dataset/240",
    licence="listed as CC BY 4.0; its own page says no commercial use",
    files=(
        File(
            "human+activity+recognition+using+smartphones.zip",
            "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
        ),
    ),
    convert=from_zip,
    facts=Facts(features=(561,), clients=30, labels=6),
    others=("har_features",),
)


def har(*, seed: int = 0, directory: str | None = None) -> Federation:
    """One client per person, features standardised with the person's own training statistics.

    That looks at raw data: free at client level, where it stays at home; outside the account at example level. A
    quarter of each person's windows is for testing, by `seed`, unless the file says which.
    """
    arrays = load_arrays(SOURCE, directory)
    x, y, client = arrays["x"].astype(np.float32).copy(), arrays["y"].astype(np.int32), arrays["client"]
    drawn = drawing(seed).uniform(size=len(y)) < 0.25
    test = arrays.get("is_test", drawn).astype(bool)
    parts = []
    for k in np.unique(client):
        own = np.flatnonzero(client == k)
        rows = x[own[~test[own]]]
        x[own] = (x[own] - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-6)
        parts.append((f"person-{k:02d}", own[~test[own]], own[test[own]]))
    x = np.clip(x, -5, 5) / np.sqrt(np.float32(x.shape[1]))
    parts.sort(key=lambda part: (len(part[1]), part[0]))
    halves = [padded(x, y, [part[n] for part in parts]) for n in (1, 2)]
    ids = tuple(part[0] for part in parts)
    return Federation(
        name="har",
        ids=ids,
        train=halves[0],
        test=halves[1],
        outcome="classes",
        classes=6,
        scaling="each person's own statistics",
        scaling_is_private=False,
    )
