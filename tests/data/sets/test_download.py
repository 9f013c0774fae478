"""Downloads, tried on files of our own: converted, checked, kept; refused when they changed or ended early."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from kinfolk.data.federation import DataError
from kinfolk.data.sets import download, mnist, patients, school, wisdm
from kinfolk.data.sets.download import File, Source, obtain


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file like MALSAR's at another address, and an empty cache."""
    generator = np.random.default_rng(0)
    x, y = np.empty((1, 3), object), np.empty((1, 3), object)
    for k, size in enumerate((5, 7, 6)):
        x[0, k] = generator.integers(0, 90, size=(size, 28)).astype(float)
        y[0, k] = generator.integers(1, 70, size=(size, 1)).astype(float)
    savemat(tmp_path / "school.mat", {"X": x, "Y": y})
    monkeypatch.delenv("KINFOLK_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    file = File("school.mat", (tmp_path / "school.mat").as_uri())
    monkeypatch.setattr(school, "SOURCE", replace(school.SOURCE, files=(file,)))
    return tmp_path


def left_behind(home: Path) -> list[Path]:
    """What a download that failed left on disk."""
    return [*(home / "home").rglob("*"), *(home / "temporary").iterdir()]


def test_a_download_is_converted_checked_and_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = school.SOURCE.convert([home / "school.mat"])
    assert arrays["x"].shape == (18, 28)
    assert arrays["client"].tolist() == [0] * 5 + [1] * 7 + [2] * 6
    monkeypatch.setattr(school, "SOURCE", replace(school.SOURCE, checksum=download.content_checksum(arrays)))
    first = school.school()
    assert first.ids == ("000", "002", "001")
    (home / "school.mat").unlink()
    np.testing.assert_array_equal(school.school().train.x, first.train.x)  # from the cache
    assert [path.name for path in left_behind(home) if path.is_file()] == ["school.npz"]


def test_a_changed_download_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="has changed"):
        school.school()
    right = "sha256:" + hashlib.sha256((home / "school.mat").read_bytes()).hexdigest()
    for digest, words in ((right, "checksum"), ("md5:" + "0" * 32, "md5 .* expected 000000000000")):
        file = replace(school.SOURCE.files[0], digest=digest)
        monkeypatch.setattr(school, "SOURCE", replace(school.SOURCE, files=(file,)))
        with pytest.raises(DataError, match=words):
            school.school()
    assert left_behind(home) == []


def test_no_network_says_what_to_do(home: Path) -> None:
    (home / "school.mat").unlink()
    with pytest.raises(DataError, match=r"kinfolk data get school --from FILE.* set KINFOLK_DATA"):
        school.school()


@pytest.fixture
def half_a_server() -> Iterator[str]:
    """A server that ends the connection after half of what it promised."""

    class Half(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2000")
            self.end_headers()
            self.wfile.write(b"h" * 1000)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Half)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/school.mat"
    server.shutdown()
    thread.join()
    server.server_close()


def test_half_a_download_leaves_nothing_behind(home: Path, half_a_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_reached(_: object) -> dict[str, np.ndarray]:
        raise AssertionError("half a file was converted")

    source = replace(school.SOURCE, files=(File("school.mat", half_a_server),), convert=not_reached)
    monkeypatch.setattr(school, "SOURCE", source)
    with pytest.raises(DataError, match=r"1000 of 2000 bytes|IncompleteRead\(1000"):
        school.school()
    assert left_behind(home) == []


def test_what_cannot_be_read_is_refused_with_the_way_by_hand(home: Path) -> None:
    (home / "school.mat").write_bytes((home / "school.mat").read_bytes()[:200])
    with pytest.raises(DataError, match=r"school.mat cannot be read as school .*kinfolk data get school --from"):
        obtain(school.SOURCE, files=[home / "school.mat"])
    assert left_behind(home) == []


@pytest.mark.parametrize(
    "source",
    [school.SOURCE, mnist.SOURCE, patients.HEART, patients.BRCA, patients.PARKINSONS, wisdm.SOURCE],
    ids=lambda source: source.name,
)
def test_the_expected_checksum_is_that_of_the_published_set(source: Source) -> None:
    path = Path(os.environ.get("KINFOLK_DATA", "nowhere")) / f"{source.name}.npz"
    if not path.exists():
        pytest.skip(f"{path.name} is not here: set KINFOLK_DATA to its directory")
    with np.load(path) as file:
        assert download.content_checksum({name: file[name] for name in file.files}) == source.checksum
