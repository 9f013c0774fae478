"""StackOverflow: tags of questions and answers (500) from a bag of 10 000 words; a user is a client.

From TensorFlow Federated's SQLite file and its two lists of counts. All users would be 135 million rows: the first so
many users (by name) with two usable rows are kept, one to train on and one to test on: 400 as in Hu, Wu and Smith. A
row's words are frequencies, so that they add up to at most 1.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from kinfolk.data.federation import DataError, Federation
from kinfolk.data.sets.download import load_arrays
from kinfolk.data.sets.source import Arrays, Facts, File, Source
from kinfolk.data.sets.tf_example import Value, clients_of, rows, unpacked
from kinfolk.data.sparse import from_sparse

WORDS, TAGS, USERS, FEWEST, MOST_ROWS = 10_000, 500, 400, 2, 500
"""Words and tags that are used, users that are kept, and rows of each at least and at most."""
HOME = "https://storage.googleapis.com/tff-datasets-public/"


def from_files(files: Sequence[Path], users: int = USERS) -> Arrays:
    """From `stackoverflow.sqlite` (or .lzma), `stackoverflow.word_count` and `.tag_count` (or .tar.bz2)."""
    by_kind = {kind: path for path in files for kind in ("sqlite", "word_count", "tag_count") if kind in path.name}
    if missing := {"sqlite", "word_count", "tag_count"} - set(by_kind):
        raise DataError(f"stackoverflow.{' and .'.join(sorted(missing))} is missing: give all three files")
    lines = _text(by_kind["word_count"]).splitlines()[:WORDS]
    words = {line.split()[0]: number for number, line in enumerate(lines)}
    counts = sorted(json.loads(_text(by_kind["tag_count"])).items(), key=lambda item: -item[1])
    tags = {tag: number for number, (tag, _) in enumerate(counts[:TAGS])}
    with unpacked(by_kind["sqlite"]) as path:
        names, found = [], []
        for name in clients_of(path, "train", FEWEST):
            usable = (entry for _, row in rows(path, "train", [name]) if (entry := _row(row, words, tags)) is not None)
            own = list(islice(usable, MOST_ROWS))
            if len(own) >= FEWEST:
                found += [(len(names), *entry) for entry in own]
                names.append(name)
            if len(names) == users:
                break
    if not found:
        raise DataError("no row has any of the tags: give the three files of one release")
    starts = [np.cumsum([0, *(len(part) for part in parts)]) for parts in zip(*(r[1:] for r in found), strict=True)]
    return {
        "indices": np.concatenate([entry[1] for entry in found]).astype(np.int32),
        "x": np.concatenate([entry[2] for entry in found]).astype(np.float32),
        "indptr": starts[0].astype(np.int64),
        "labels": np.concatenate([entry[3] for entry in found]).astype(np.int32),
        "label_starts": starts[2].astype(np.int64),
        "client": np.array([entry[0] for entry in found], np.int32),
        "client_name": np.array(names),
    }


def _row(
    row: dict[str, Value], words: dict[str, int], tags: dict[str, int]
) -> tuple[list[int], list[float], list[int]] | None:
    """Words, their frequencies, and tags; none where none of the tags is used."""
    text = {name: bytes(row[name][0]).decode() for name in ("tokens", "title", "tags")}
    labels = sorted({tags[tag] for tag in text["tags"].split("|") if tag in tags})
    spoken = f"{text['tokens']} {text['title']}".split()
    counts = Counter(words[word] for word in spoken if word in words)
    if not labels or not counts:
        return None
    order = sorted(counts)
    return order, [counts[word] / len(spoken) for word in order], labels


def _text(path: Path) -> str:
    if not tarfile.is_tarfile(path):
        return path.read_text()
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                return content.read().decode()
    raise DataError(f"{path.name} is empty")


SOURCE = Source(
    name="stackoverflow",
    title=f"tags ({TAGS}) from a bag of {WORDS} words; {USERS} of 342 477 users",
    home="https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/stackoverflow/load_data",
    licence="CC BY-SA 3.0",
    files=(
        File("stackoverflow.sqlite.lzma", f"{HOME}stackoverflow.sqlite.lzma"),
        File(
            "stackoverflow.word_count.tar.bz2",
            f"{HOME}stackoverflow.word_count.tar.bz2",
            "sha256:1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
        ),
        File(
            "stackoverflow.tag_count.tar.bz2",
            f"{HOME}stackoverflow.tag_count.tar.bz2",
            "sha256:6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
        ),
    ),
    convert=from_files,
    facts=Facts(features=(WORDS,), labels=TAGS),
    needs=("x", "indices", "indptr", "labels", "label_starts", "client"),
    also=("stackoverflow.sqlite", "stackoverflow.word_count", "stackoverflow.tag_count"),
    by_hand="fetch stackoverflow.sqlite.lzma, stackoverflow.word_count.tar.bz2 and stackoverflow.tag_count.tar.bz2 of "
    "TensorFlow Federated (several GB)",
)


def stackoverflow(
    *, outcome: str = "classes", test_fraction: float = 0.2, seed: int = 0, directory: str | None = None
) -> Federation:
    """One client per user; rows are sparse.

    `outcome`: `classes`, a row's most used tag; or `labels`, for each tag whether the row has it (dense: 400 MB for 400
    users). `test_fraction`, `seed`, `directory`: as of every set.
    """
    if outcome not in ("classes", "labels"):
        raise DataError(f"outcome={outcome!r} is not one of classes (the most used tag) and labels (all tags)")
    arrays = load_arrays(SOURCE, directory)
    starts, rows_found = arrays["label_starts"], len(arrays["client"])
    matrix = csr_array((arrays["x"], arrays["indices"], arrays["indptr"]), shape=(rows_found, WORDS), dtype=np.float32)
    y = arrays["labels"][starts[:-1]]
    if outcome == "labels":
        y = np.zeros((rows_found, TAGS), np.uint8)
        y[np.repeat(np.arange(rows_found), np.diff(starts)), arrays["labels"]] = 1
    return from_sparse(
        matrix,
        y,
        np.char.add("user-", np.char.zfill(arrays["client"].astype(str), 4)),
        outcome=outcome,
        classes=TAGS,
        test_fraction=test_fraction,
        seed=seed,
        name="stackoverflow",
        scaling="word frequencies",
    )
