"""Every built-in set, from small files in the form in which it is published, to a federation."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sqlite3
import struct
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from kinfolk.data.federation import DataError
from kinfolk.data.sets import celeba, cifar, femnist, har, mnist, silos, stackoverflow, wisdm
from kinfolk.data.sets.catalogue import BUILT_IN
from kinfolk.data.sets.download import obtain
from kinfolk.data.sets.tf_example import read_example

GENERATOR = np.random.default_rng(0)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(**features: bytes | list[float] | int) -> bytes:
    """A serialised tf.train.Example, as TensorFlow writes it."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif isinstance(value, int):
            feature = field(3, field(1, varint(value % 2**64)))
        else:
            feature = field(2, field(1, struct.pack(f"<{len(value)}f", *value)))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def tff_database(path: Path, rows: Mapping[tuple[str, str], list[bytes]]) -> Path:
    """An SQLite file of TensorFlow Federated: examples by client and split."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        database.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for (split, client), messages in rows.items():
            database.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(messages)))
            database.executemany(
                "INSERT INTO examples VALUES (?, ?, ?)", [(split, client, message) for message in messages]
            )
        database.commit()
    return path


def archive(path: Path, members: Mapping[str, bytes], mode: str) -> Path:
    with tarfile.open(path, mode) as packed:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return path


def test_messages_of_tensorflow_are_read_and_broken_ones_refused() -> None:
    found = read_example(example(a=b"words", b=[0.5, -2.0], c=-3))
    assert found["a"] == [b"words"]
    assert np.asarray(found["b"]).tolist() == [0.5, -2.0]
    assert np.asarray(found["c"]).tolist() == [-3]
    with pytest.raises(ValueError, match="ends in the middle"):
        read_example(example(a=b"words")[:-2])


@pytest.mark.parametrize(("name", "inside"), [("vehicle", "data/vehicle/vehicle.mat"), ("gleam", "gleam/gleam.mat")])
def test_silos_come_from_cells_of_matlab_alone_or_in_the_bundle(name: str, inside: str, tmp_path: Path) -> None:
    silos, features = (23, 100) if name == "vehicle" else (38, 5)
    shape = (silos, 1) if name == "vehicle" else (1, silos)
    x, y = np.empty(shape, object), np.empty(shape, object)
    for k, size in enumerate((12, 8, *[10] * (silos - 2))):
        x.ravel()[k] = GENERATOR.normal(3.0, 2.0, size=(size, features))
        y.ravel()[k] = np.where(np.arange(size) % 2, 1, -1)[:, None]
    savemat(tmp_path / f"{name}.mat", {"X": x, "Y": y})
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w") as packed:
        packed.write(tmp_path / f"{name}.mat", inside)
        packed.writestr("__MACOSX/" + inside, b"")
    entry = BUILT_IN[name]
    assert entry.source is not None
    alone, bundle = (obtain(entry.source, tmp_path, [tmp_path / n])[0] for n in (f"{name}.mat", "bundle.zip"))
    np.testing.assert_array_equal(alone["x"], bundle["x"])
    data = entry.load(directory=str(tmp_path), test_fraction=0.25)
    assert (data.name, data.train.sizes.tolist(), data.outcome) == (name, [6, *[7] * (silos - 2), 9], "binary")
    assert np.abs(data.train.x[0, :6].mean(axis=0)).max() < 1e-5
    assert not data.scaling_is_private
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("school.mat", b"")
    with pytest.raises(DataError, match=f"has no {name}.mat"):
        obtain(entry.source, tmp_path, [tmp_path / "other.zip"])


def test_the_part_of_vehicle_is_called_so(tmp_path: Path) -> None:
    rows = {"x": np.ones((8, 2), np.float32), "y": np.tile([0, 1], 4), "client": np.repeat([0, 1], 4)}
    np.savez(tmp_path / "vehicle_ditto_train.npz", **rows)  # type: ignore[arg-type]
    assert silos.vehicle(directory=str(tmp_path)).name == "vehicle_part"


def test_femnist_comes_from_leaf_and_from_tensorflow_federated(tmp_path: Path) -> None:
    images = GENERATOR.integers(0, 256, size=(44, 784))
    grey = (images / 255).tolist()
    for half, own in (("train", slice(0, 36)), ("test", slice(36, 44))):
        (tmp_path / half).mkdir()
        numbers = list(range(44))[own]
        content = {
            user: {"x": [grey[n] for n in numbers if n % 2 == k], "y": [n % 62 for n in numbers if n % 2 == k]}
            for k, user in enumerate(("f1", "f2"))
        }
        counts = [len(content[user]["y"]) for user in content]
        written = {"users": list(content), "num_samples": counts, "user_data": content}
        (tmp_path / half / "all_data_0.json").write_text(json.dumps(written))
    messages: dict[tuple[str, str], list[bytes]] = {}
    for n in range(44):
        split = "all_train" if n < 36 else "all_test"
        messages.setdefault((split, f"f{n % 2 + 1}"), []).append(example(pixels=grey[n], label=n % 62))
    database = tff_database(tmp_path / "emnist_all.sqlite", messages)
    packed = tmp_path / "emnist_all.sqlite.lzma"
    packed.write_bytes(lzma.compress(database.read_bytes(), preset=0))
    leaf, plain, small = (
        femnist.from_files(files) for files in ([tmp_path / "train", tmp_path / "test"], [database], [packed])
    )
    for name in ("x", "y", "client", "is_test", "client_name"):
        np.testing.assert_array_equal(leaf[name], plain[name])
        np.testing.assert_array_equal(leaf[name], small[name])
    np.testing.assert_array_equal(leaf["x"][:18], images[0:36:2].reshape(-1, 28, 28))
    np.savez(tmp_path / "femnist.npz", **leaf)  # type: ignore[arg-type]
    data = femnist.femnist(directory=str(tmp_path))
    assert (data.train.sizes.tolist(), data.test.sizes.tolist(), data.classes) == ([18, 18], [4, 4], 62)
    messages[("all_train", "f1")][0] = example(pixels=grey[0], label=[0.0, 1.0])
    with pytest.raises(DataError, match="writer 'f1' has not as many labels as images"):
        femnist.from_files([tff_database(tmp_path / "two_labels.sqlite", messages)])
    with pytest.raises(DataError, match="neither LEAF's JSON nor one SQLite file"):
        femnist.from_files([database, packed])


def test_celeba_comes_from_leafs_lists_and_from_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{n:06d}.jpg" for n in range(1, 13)]
    (tmp_path / "img_align_celeba").mkdir()
    for n, name in enumerate(names):
        (tmp_path / "img_align_celeba" / name).write_bytes(bytes([n]))
    with zipfile.ZipFile(tmp_path / "img_align_celeba.zip", "w") as packed:
        for name in names:
            packed.write(tmp_path / "img_align_celeba" / name, f"img_align_celeba/{name}")
    owners = ["7"] * 5 + ["9"] * 5 + ["8"] * 2  # the last has too few
    smiles = [n % 2 for n in range(12)]
    identity = "\n".join(f"{name} {owner}" for name, owner in zip(names, owners, strict=True))
    (tmp_path / "identity_CelebA.txt").write_text(identity + "\n")
    lines = [f"{name} -1 {1 if smile else -1}" for name, smile in zip(names, smiles, strict=True)]
    (tmp_path / "list_attr_celeba.txt").write_text("\n".join(["12", "Young Smiling", *lines]) + "\n")
    for half, own in (("train", range(8)), ("test", range(8, 10))):
        users = sorted({owners[n] for n in own})
        of = {user: [n for n in own if owners[n] == user] for user in users}
        data = {user: {"x": [names[n] for n in of[user]], "y": [smiles[n] for n in of[user]]} for user in users}
        content = {"users": users, "num_samples": [len(of[user]) for user in users], "user_data": data}
        (tmp_path / half).mkdir()
        (tmp_path / half / f"{half}.json").write_text(json.dumps(content))
    texts = [tmp_path / "identity_CelebA.txt", tmp_path / "list_attr_celeba.txt"]
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "PIL", None)
        with pytest.raises(DataError, match=r"needs Pillow: pip install 'kinfolk\[images\]'"):
            celeba.from_files([tmp_path / "img_align_celeba", *texts])
    monkeypatch.setattr(celeba, "_pixels", lambda content: np.full((84, 84, 3), content[0], np.uint8))
    own = celeba.from_files([tmp_path / "img_align_celeba.zip", *texts])
    leaf = celeba.from_files([tmp_path / "train", tmp_path / "test", tmp_path / "img_align_celeba"])
    for name in ("x", "y", "client"):
        np.testing.assert_array_equal(own[name], leaf[name])
    assert own["x"][:, 0, 0, 0].tolist() == list(range(10))
    assert own["client_name"].tolist() == ["7", "9"]
    assert (own["is_test"].sum(), leaf["is_test"].sum()) == (0, 2)
    np.savez(tmp_path / "celeba.npz", **own)  # type: ignore[arg-type]
    assert celeba.celeba(directory=str(tmp_path)).train.sizes.tolist() == [4, 4]
    assert len(celeba.celeba(directory=str(tmp_path), celebrities=1).ids) == 1
    with pytest.raises(DataError, match="of one half alone: give both folders, train and test"):
        celeba.from_files([tmp_path / "train", tmp_path / "img_align_celeba"])
    with pytest.raises(DataError, match=r"identity_CelebA.txt is missing"):
        celeba.from_files([tmp_path / "img_align_celeba", texts[1]])


def test_images_of_celebrities_are_decoded_made_small_and_kept(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    colours = [(200, 40, 40), (40, 200, 40), (40, 40, 200), (200, 200, 200), (40, 40, 40)]
    names = [f"{n:06d}.jpg" for n in range(len(colours))]
    with zipfile.ZipFile(tmp_path / "faces.zip", "w") as packed:
        for name, colour in zip(names, colours, strict=True):
            with packed.open(f"img_align_celeba/{name}", "w") as content:
                image.new("RGB", (178, 218), colour).save(content, "JPEG", quality=95)
    data = {"7": {"x": names, "y": [0, 1, 0, 1, 0]}}
    (tmp_path / "all.json").write_text(json.dumps({"users": ["7"], "num_samples": [5], "user_data": data}))
    arrays, _ = obtain(celeba.SOURCE, tmp_path, [tmp_path / "faces.zip", tmp_path / "all.json"])
    assert (arrays["x"].shape, arrays["x"].dtype) == ((5, 84, 84, 3), np.uint8)
    assert np.abs(arrays["x"].astype(int) - np.array(colours)[:, None, None, :]).max() <= 6
    faces = celeba.celeba(directory=str(tmp_path), test_fraction=0.0)
    assert (faces.shape, faces.outcome) == ((84, 84, 3), "binary")
    assert 0.1 < faces.train.x.min() < faces.train.x.max() < 0.85
    with zipfile.ZipFile(tmp_path / "faces.zip", "w") as packed:
        for name in names:
            packed.writestr(name, b"\xff\xd8\xff\xe0 and no more")
    with pytest.raises(DataError, match=r"cannot be read as celeba \("):
        obtain(celeba.SOURCE, tmp_path / "other", [tmp_path / "faces.zip", tmp_path / "all.json"])
    assert not (tmp_path / "other").exists()


def test_stackoverflow_is_a_sparse_bag_of_words(tmp_path: Path) -> None:
    def row(tokens: str, title: str, tags: str) -> bytes:
        words = {"tokens": tokens, "title": title, "tags": tags, "type": "answer", "creation_date": ""}
        return example(score=-1, **{key: value.encode() for key, value in words.items()})

    messages = {
        ("train", "u1"): [row("a b a zzz", "c", "sql|css"), row("b", "b", "nobody"), row("c c", "", "css|git")],
        ("train", "u11"): [row("b", "b", "nobody")] * 3 + [row("c", "c", "sql")],  # one that can be used: too few
        ("train", "u2"): [row("b c", "a a", "git")] * 2,
        ("test", "u1"): [row("a", "a", "css")],
    }
    database = tff_database(tmp_path / "stackoverflow.sqlite", messages)
    words = tmp_path / "stackoverflow.word_count.tar.bz2"
    archive(words, {"stackoverflow.word_count": b"a 9\nb 5\nc 2\n"}, "w:bz2")
    tags = tmp_path / "stackoverflow.tag_count"
    tags.write_text(json.dumps({"git": 1, "css": 8, "sql": 3}))
    arrays = stackoverflow.from_files([database, words, tags])
    assert arrays["indices"].tolist() == [0, 1, 2, 2, 0, 1, 2, 0, 1, 2]
    np.testing.assert_allclose(arrays["x"][:4], [0.4, 0.2, 0.2, 1.0])
    assert arrays["labels"].tolist() == [0, 1, 0, 2, 2, 2]
    assert arrays["label_starts"].tolist() == [0, 2, 4, 5, 6]
    assert arrays["client"].tolist() == [0, 0, 1, 1]
    assert arrays["client_name"].tolist() == ["u1", "u2"]
    assert len(set(stackoverflow.from_files([database, words, tags], users=1)["client"])) == 1
    np.savez(tmp_path / "stackoverflow.npz", **arrays)  # type: ignore[arg-type]
    data = stackoverflow.stackoverflow(directory=str(tmp_path), test_fraction=0.0)
    assert (data.shape, data.classes, data.ids) == ((10_000,), 500, ("user-0000", "user-0001"))
    assert data.train.y.tolist() == [[0, 0], [2, 2]] or sorted(data.train.y.ravel().tolist()) == [0, 0, 2, 2]
    several = stackoverflow.stackoverflow(directory=str(tmp_path), test_fraction=0.0, outcome="labels")
    assert (several.classes, several.train.y.shape) == (500, (2, 2, 500))
    first = several.train.y[several.ids.index("user-0000")]
    assert sorted(np.flatnonzero(row).tolist() for row in first) == [[0, 1], [0, 2]]
    with pytest.raises(DataError, match="outcome='number' is not one of classes"):
        stackoverflow.stackoverflow(directory=str(tmp_path), outcome="number")
    with pytest.raises(DataError, match="tag_count is missing"):
        stackoverflow.from_files([database, words])


def test_mnist_comes_from_idx_files(tmp_path: Path) -> None:
    parts = []
    for count in (4, 2):
        images = GENERATOR.integers(0, 256, size=(count, 28, 28), dtype=np.uint8)
        parts += [struct.pack(">4i", 2051, count, 28, 28) + images.tobytes()]
        parts += [struct.pack(">2i", 2049, count) + bytes(range(count))]
    for part, content in zip(mnist.PARTS, parts, strict=True):
        (tmp_path / f"{part}-ubyte.gz").write_bytes(gzip.compress(content))
    arrays = mnist.from_idx([tmp_path / f"{part}-ubyte.gz" for part in mnist.PARTS])
    assert (arrays["x"].shape, arrays["y"].tolist()) == ((6, 28, 28), [0, 1, 2, 3, 0, 1])


def test_cifar_comes_from_the_binary_archive_and_silos_have_few_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "PICTURES", 100)

    def batch(rows: int) -> bytes:
        labels = np.arange(rows, dtype=np.uint8) % 10
        images = np.repeat(labels, cifar.RECORD - 1).reshape(rows, -1)
        images[:, 0] = 200  # the first red value
        return np.concatenate([labels[:, None], images], axis=1).tobytes()

    members = {f"cifar-10-batches-bin/data_batch_{n}.bin": batch(40) for n in (1, 2)}
    members |= {"cifar-10-batches-bin/test_batch.bin": batch(20), "cifar-10-batches-bin/readme.html": b"-"}
    packed = archive(tmp_path / "cifar-10-binary.tar.gz", members, "w:gz")
    arrays = cifar.from_binary([packed])
    with tarfile.open(packed) as whole:
        whole.extractall(tmp_path / "unpacked", filter="data")
    for name, values in cifar.from_files([tmp_path / "unpacked"]).items():
        np.testing.assert_array_equal(values, arrays[name])
    assert (arrays["x"].shape, int(arrays["is_test"].sum())) == ((100, 32, 32, 3), 20)
    assert arrays["x"][3, 0, 0].tolist() == [200, 3, 3]
    np.savez(tmp_path / "cifar10.npz", **arrays)  # type: ignore[arg-type]
    data = cifar.cifar10(directory=str(tmp_path), silos=5, classes=4)
    for k, size in enumerate(data.train.sizes):
        assert len(set(data.train.y[k, :size].tolist())) <= 4
    assert data.train.sizes.sum() == 80
    assert len(cifar.cifar10(directory=str(tmp_path), silos=2, concentration=5.0).ids) == 2
    archive(tmp_path / "short.tar.gz", {"data_batch_1.bin": b"x", "test_batch.bin": b"x"}, "w:gz")
    with pytest.raises(DataError, match="no whole images"):
        cifar.from_binary([tmp_path / "short.tar.gz"])
    archive(tmp_path / "python.tar.gz", {"cifar-10-batches-py/data_batch_1": b"x"}, "w:gz")
    archive(tmp_path / "few.tar.gz", {"data_batch_1.bin": batch(80)}, "w:gz")
    for name, count in (("python", 0), ("few", 80)):
        with pytest.raises(DataError, match=f"{count} pictures in .bin files, not 100: give cifar-10-binary.tar.gz"):
            cifar.from_binary([tmp_path / f"{name}.tar.gz"])


@pytest.mark.parametrize("nested", [True, False])
def test_har_comes_from_the_archive_of_archives(nested: bool, tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as packed:
        for half, people in (("train", [1, 1, 2, 2] * 8), ("test", [*range(3, 31)] * 8)):
            values = GENERATOR.normal(size=(len(people), 561))
            text = "\n".join(" ".join(f"{value: .7e}" for value in row) for row in values)
            packed.writestr(f"UCI HAR Dataset/{half}/X_{half}.txt", text)
            labels = "\n".join(str(n % 6 + 1) for n in range(len(people)))
            packed.writestr(f"UCI HAR Dataset/{half}/y_{half}.txt", labels)
            packed.writestr(f"UCI HAR Dataset/{half}/subject_{half}.txt", "\n".join(map(str, people)))
    path = tmp_path / "har.zip"
    path.write_bytes(inner.getvalue())
    if nested:
        with zipfile.ZipFile(path, "w") as outer:
            outer.writestr("UCI HAR Dataset.zip", inner.getvalue())
    arrays, kept_in = obtain(har.SOURCE, tmp_path, [path])
    assert kept_in == tmp_path / "har.npz"
    assert arrays["client"].tolist() == [0] * 16 + [1] * 16 + [n for n in range(2, 30) for _ in range(8)]
    assert arrays["is_test_official"].sum() == 28 * 8
    data = har.har(directory=str(tmp_path))
    assert (len(data.ids), data.shape, data.classes) == (30, (561,), 6)
    assert int(data.train.sizes.sum() + data.test.sizes.sum()) == 32 + 28 * 8


def test_wisdm_comes_from_arff_alone_or_in_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wisdm, "SOURCE", replace(wisdm.SOURCE, checksum=""))
    values = ",".join(["0.1"] * 30 + ["1", "2", "3", "100", "?", "200"] + ["1"] * 7)
    lines = [f"{n},{33 if n < 6 else 17},{values},{wisdm.ACTIVITIES[n % 6]}" for n in range(12)]
    text = "\n".join(["@relation person_activity", "@data", *lines]) + "\n"
    (tmp_path / wisdm.ARFF).write_text(text)
    packed = archive(tmp_path / "w.tar.gz", {f"WISDM_ar_v1.1/{wisdm.ARFF}": text.encode()}, "w:gz")
    alone, together = wisdm.from_arff([tmp_path / wisdm.ARFF]), wisdm.from_arff([packed])
    np.testing.assert_array_equal(alone["x"], together["x"])
    assert alone["client"].tolist() == [1] * 6 + [0] * 6
    assert alone["y"].tolist() == [0, 1, 2, 3, 4, 5] * 2
    np.savez(tmp_path / "wisdm.npz", **alone)  # type: ignore[arg-type]
    data = wisdm.wisdm(directory=str(tmp_path), test_fraction=0.5)
    assert data.train.x[0, 0, 34] == 0.5
    (tmp_path / "short.arff").write_text("1,2,3,Walking\n")
    with pytest.raises(DataError, match="a row of 4 values"):
        wisdm.from_arff([tmp_path / "short.arff"])
