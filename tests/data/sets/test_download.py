"""Downloads, tried on files of our own: converted, checked, kept; refused when they changed or ended early."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from kinfolk.data.federation import DataError
from kinfolk.data.sets import femnist, mnist, patients, school, wisdm
from kinfolk.data.sets.download import load_arrays, obtain
from kinfolk.data.sets.source import File, Source, content_checksum


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
    monkeypatch.setattr(school, "SOURCE", replace(school.SOURCE, checksum=content_checksum(arrays)))
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
    with pytest.raises(DataError, match=r"kinfolk data get school --from school.mat`, or set KINFOLK_DATA"):
        school.school()


@pytest.fixture
def answers() -> Iterator[Callable[..., str]]:
    """Makes servers that answer with this content, and what they say of its length; `stop`: and then say nothing."""
    servers = []

    def serve(content: bytes, length: str, stop: threading.Event | None = None) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(content)
                if stop is not None:
                    stop.wait(30)

            def log_message(self, format: str, *args: object) -> None:
                return

        server = HTTPServer(("127.0.0.1", 0), Answer)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread, stop))
        return f"http://127.0.0.1:{server.server_port}/school.mat"

    yield serve
    for server, thread, stop in servers:
        if stop is not None:
            stop.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_half_a_download_leaves_nothing_behind(
    home: Path, answers: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_reached(_: object) -> dict[str, np.ndarray]:
        raise AssertionError("half a file was converted")

    source = replace(school.SOURCE, files=(File("school.mat", answers(b"h" * 1000, "2000")),), convert=not_reached)
    monkeypatch.setattr(school, "SOURCE", source)
    with pytest.raises(DataError, match=r"1000 of 2000 bytes|IncompleteRead\(1000"):
        school.school()
    assert left_behind(home) == []


@pytest.mark.parametrize(
    ("content", "length", "words"),
    [
        (b"h" * 10, "abc", "answered with Content-Length='abc', which is no number of bytes"),
        (b"\n <!DOCTYPE html><html>Sign in</html>", "37", "answered with a web page in place of school.mat"),
        (b"<HTML>Sign in", "13", "answered with a web page"),
    ],
)
def test_an_answer_that_is_no_file_is_recognised(
    content: bytes, length: str, words: str, home: Path, answers: Callable[..., str]
) -> None:
    source = replace(school.SOURCE, files=(File("school.mat", answers(content, length)),))
    with pytest.raises(DataError, match=rf"{words}.*kinfolk data get school --from school.mat"):
        load_arrays(source)
    assert left_behind(home) == []


def test_a_web_page_that_was_saved_is_recognised(home: Path) -> None:
    (home / "school.mat").write_bytes(b"<!doctype html>")
    with pytest.raises(DataError, match=r"school.mat is a web page, not school, and nothing was kept"):
        obtain(school.SOURCE, files=[home / "school.mat"])


STOPPED = """
import signal
import sys
from dataclasses import replace
from kinfolk.data.sets import school
from kinfolk.data.sets.download import load_arrays, obtain
from kinfolk.data.sets.source import File
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
obtain(replace(school.SOURCE, files=(File("school.mat", sys.argv[1]),)))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_leaves_nothing_of_half_a_download(name: str, home: Path, answers: Callable[..., str]) -> None:
    url = answers(b"h" * 1000, "2000", threading.Event())
    process = subprocess.Popen([sys.executable, "-c", STOPPED, url], env=dict(os.environ))
    while not any(path.name == "school.mat" for path in (home / "temporary").rglob("*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(getattr(signal, name))
    assert process.wait(30) == 128 + getattr(signal, name)
    assert left_behind(home) == []


def test_signals_mean_afterwards_what_they_did_before(home: Path) -> None:
    ours = replace(school.SOURCE, checksum="")
    for handler in (signal.SIG_DFL, signal.SIG_IGN):
        before = signal.signal(signal.SIGHUP, handler)
        try:
            obtain(ours, files=[home / "school.mat"])
            assert signal.getsignal(signal.SIGHUP) is handler
        finally:
            signal.signal(signal.SIGHUP, before)
    found = []
    thread = threading.Thread(target=lambda: found.append(obtain(ours, files=[home / "school.mat"])))
    thread.start()
    thread.join()
    assert len(found) == 1


def test_what_cannot_be_kept_is_said_with_the_place(home: Path) -> None:
    (home / "full").write_text("a file, not a directory")
    ours = replace(school.SOURCE, checksum="")
    with pytest.raises(
        DataError, match=r"full/school.npz cannot be written \(.*\), and nothing was kept: .*--data-dir"
    ):
        obtain(ours, home / "full", [home / "school.mat"])
    (home / "home").write_text("no directory either")
    assert len(load_arrays(ours)["y"]) == 18  # they can be used all the same


def test_what_is_kept_is_never_replaced(home: Path) -> None:
    ours = replace(school.SOURCE, checksum="")
    _, path = obtain(ours, files=[home / "school.mat"])
    before = path.stat()
    file = File("school.mat", (home / "nothing").as_uri())
    assert obtain(replace(ours, files=(file,)))[1] == path  # without a download
    assert obtain(ours, files=[home / "school.mat"])[1] == path
    other = {key: value[:10] for key, value in load_arrays(ours).items() if key in ("x", "y", "client")}
    with pytest.raises(DataError, match=r"school.npz is there already, with other rows: remove it first"):
        obtain(replace(ours, convert=lambda _: other), files=[home / "school.mat"])
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(DataError, match=r"holds other rows than school as it is published .*: remove it and run"):
        obtain(school.SOURCE)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_for_temporary_files_is_called_so(number: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    words = r"there is no room in .*temporary .*set TMPDIR to another place; nothing was kept"
    ours = replace(school.SOURCE, checksum="")
    with pytest.raises(DataError, match=words):
        obtain(replace(ours, convert=full), files=[home / "school.mat"])  # type: ignore[arg-type]
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(DataError, match=words):
        obtain(ours)
    assert left_behind(home) == []


def test_what_is_kept_may_be_read_by_all_and_lies_where_a_tilde_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINFOLK_DATA", "~/data")
    (home / "home").mkdir()
    ours = replace(school.SOURCE, checksum="")
    _, path = obtain(ours, files=[home / "school.mat"])
    assert path == home / "home" / "data" / "school.npz"
    assert path.stat().st_mode & 0o777 == 0o644
    assert len(load_arrays(ours)["y"]) == 18


@pytest.mark.parametrize("inside", ["", "deeper/down"])
def test_a_folder_is_searched_for_files_by_their_names(inside: str, home: Path) -> None:
    (home / "mine" / inside).mkdir(parents=True)
    (home / "mine" / "a.txt").write_text("something else")
    remedy = r"mine has none of school.mat, and nothing was kept: .*kinfolk data get school --from school.mat"
    with pytest.raises(DataError, match=remedy):
        obtain(school.SOURCE, files=[home / "mine"])
    (home / "school.mat").rename(home / "mine" / inside / "school.mat")
    assert len(obtain(replace(school.SOURCE, checksum=""), files=[home / "mine"])[0]["y"]) == 18


def test_mnist_is_picked_by_name_in_any_order_packed_or_not(home: Path) -> None:
    parts = []
    for count in (4, 2):
        parts += [bytes(16) + bytes(28 * 28 * count), bytes(8) + bytes(range(count))]
    (home / "mine").mkdir()
    for number, (part, content) in enumerate(zip(mnist.PARTS, parts, strict=True)):
        packed = gzip.compress(content) if number % 2 else content
        (home / "mine" / f"{part}-ubyte{'.gz' if number % 2 else ''}").write_bytes(packed)
    ours = replace(mnist.SOURCE, checksum="")
    spelled = [path.rename(home / path.name.replace("-idx", ".idx")) for path in sorted((home / "mine").iterdir())]
    assert obtain(ours, files=spelled)[0]["y"].tolist() == [0, 1, 2, 3, 0, 1]  # as other mirrors call them
    for path in spelled:
        path.rename(home / "mine" / path.name.replace(".idx", "-idx"))
    for files in ([home / "mine"], sorted((home / "mine").iterdir()), sorted((home / "mine").iterdir())[::-1]):
        assert obtain(ours, files=files)[0]["y"].tolist() == [0, 1, 2, 3, 0, 1]


def test_a_remedy_is_a_whole_command(home: Path) -> None:
    command = "kinfolk data get heart_disease --data-dir 'my data' " + " ".join(
        f"--from processed.{name}.data" for name in patients.HOSPITALS
    )
    assert command in patients.HEART.remedy("my data")
    assert "kinfolk data get femnist --from train --from test`" in femnist.SOURCE.remedy()
    with pytest.raises(DataError, match=r"2 files were given, and school is one"):
        obtain(school.SOURCE, files=[home / "school.mat", home / "school.mat"])


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
        assert content_checksum({name: file[name] for name in file.files}) == source.checksum
