"""A silo's line as a process of its own, which is stopped, goes on, and has a wrong clock."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from kinfolk.deploy import keys, post_office
from kinfolk.deploy.carriers import ByPost, exchange
from tests.deploy.lines import Guarded, guarded
from tests.deploy.processes import wait_until
from tests.deploy.test_keys import at

pytestmark = [
    pytest.mark.skipif(find_spec("flwr") is None, reason="pip install 'kinfolk[flower]'"),
    pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals"),
]
needs_faketime = pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
ROOT = Path(__file__).parents[2]
SILOS = ("a", "b")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Its certificates began yesterday, so that a clock may be behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "datetime", at(-1))
        with guarded(tmp_path_factory.mktemp("guarded")) as found:
            yield found


@contextmanager
def silo(server: Guarded, name: str, log: Path, under: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a silo's line. `under`: the command that starts it."""
    words = (*under, sys.executable, "-m", "tests.deploy.echo_silo", server.folder, name, f"127.0.0.1:{server.port}")
    with log.open("ab") as file:
        process = subprocess.Popen(list(map(str, words)), cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # faketime is a process of its own before the silo's
        process.wait()


class PostOf:
    """What the server's app sees of the post office, without the socket between them."""

    def __init__(self, server: Guarded) -> None:
        self.server = server

    def present(self) -> list[bytes]:
        return self.server.present()

    def ask(self, keys: Sequence[bytes], request: bytes, longest: int) -> dict[str, bytes]:
        names = {key: secrets.token_hex(16) for key in keys}
        self.server.loop.call_soon_threadsafe(self.server.office.ask, names, request, longest)
        return {name: key for key, name in names.items()}

    def collect(self, names: Sequence[str], seconds: float) -> dict[str, bytes]:
        return self.server.collect(*names, seconds=seconds)

    def clear(self) -> None:
        self.server.loop.call_soon_threadsafe(self.server.office.clear)


def wait_for_both(server: Guarded) -> None:
    """Waits for two silos that have just been started; those of the test before are not meant."""
    server.loop.call_soon_threadsafe(server.office._seen.clear)
    wait_until(lambda: len(server.present()) == 2, 60, "both silos")


def asked(server: Guarded, what: bytes, seconds: float = 60.0) -> tuple[dict[int, bytes], float]:
    """A round's answers by place, and how long it took."""
    way, began = ByPost(PostOf(server), {server.key(name): k for k, name in enumerate(SILOS)}), time.monotonic()  # type: ignore[arg-type]
    return exchange([way], range(len(SILOS)), what, 100, seconds), time.monotonic() - began


def test_a_silo_that_is_stopped_is_not_waited_for_and_goes_on(
    server: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_office, "AWAY", 1.0)  # 15 s otherwise
    with silo(server, "a", tmp_path / "a.log") as stopped, silo(server, "b", tmp_path / "b.log"):
        wait_for_both(server)
        assert asked(server, b"one")[0] == {0: b"echo of one", 1: b"echo of one"}
        stopped.send_signal(signal.SIGSTOP)
        answers, seconds = asked(server, b"two")
        assert answers == {1: b"echo of two"}
        assert seconds < 20
        stopped.send_signal(signal.SIGCONT)
        wait_until(lambda: server.key("a") in server.present(), 60, "the silo that was stopped")
        answers, _ = asked(server, b"three")
        assert answers == {0: b"echo of three", 1: b"echo of three"}, "and not its late answer to the round before"


def test_a_silo_that_was_stopped_in_the_middle_of_a_round_still_answers_it(server: Guarded, tmp_path: Path) -> None:
    with silo(server, "a", tmp_path / "a.log") as stopped, silo(server, "b", tmp_path / "b.log"):
        wait_for_both(server)
        stopped.send_signal(signal.SIGSTOP)
        server.loop.call_soon_threadsafe(server.loop.call_later, 1.0, stopped.send_signal, signal.SIGCONT)
        assert asked(server, b"one")[0] == {0: b"echo of one", 1: b"echo of one"}


def clock(change: str) -> tuple[str, ...]:
    """A command under which programs see another time of day; seconds pass as usual."""
    return ("faketime", "-f", change)


@needs_faketime
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("+30s", "clock is 30 s ahead of the server's"),
        ("-400s", "clock is 400 s behind the server's"),
        ("+400d", "ended on"),
        ("-2d", "is this machine's clock right?"),
    ],
)
def test_a_wrong_clock_is_named_by_the_silo_that_has_it(
    server: Guarded, tmp_path: Path, change: str, said: str
) -> None:
    log = tmp_path / "a.log"
    with silo(server, "a", log, clock(change)):
        wait_until(lambda: said[:8] in log.read_text(), 20, said)
    told = log.read_text()
    near = [said, *(said.replace(n, str(int(n) + d)) for n in ("30", "400") for d in (-1, 1))]
    assert any(words in told for words in near), told
    assert "connected" not in told


@needs_faketime
def test_a_clock_that_is_a_little_wrong_is_served(server: Guarded, tmp_path: Path) -> None:
    with silo(server, "a", tmp_path / "a.log", clock("+2s")), silo(server, "b", tmp_path / "b.log", clock("-20s")):
        wait_for_both(server)
        assert asked(server, b"one")[0] == {0: b"echo of one", 1: b"echo of one"}
