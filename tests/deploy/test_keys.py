"""Certificates that end, and files that are their owner's."""

from __future__ import annotations

import stat
import sys
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest

from kinfolk.deploy import keys
from kinfolk.deploy.flower_processes import Command, running
from kinfolk.toml import ConfigError

needs_cryptography = pytest.mark.skipif(find_spec("cryptography") is None, reason="pip install 'kinfolk[flower]'")


def at(days: float) -> type[datetime]:
    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=days)

    return Later


@needs_cryptography
@pytest.mark.parametrize("name", ["ca.crt", "server.crt"])
def test_the_end_of_a_certificate_is_told_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keys.write_certificates(tmp_path, ["localhost"])
    said: list[str] = []
    keys.require_valid(tmp_path / name, said.append)
    assert said == []
    monkeypatch.setattr(keys, "datetime", at(336))
    keys.require_valid(tmp_path / name, said.append)
    assert "before" in said[0]
    monkeypatch.setattr(keys, "datetime", at(366))
    with pytest.raises(ConfigError, match="ended on"):
        keys.require_valid(tmp_path / name, said.append)
    monkeypatch.setattr(keys, "datetime", at(-1))
    with pytest.raises(ConfigError, match="clock"):
        keys.require_valid(tmp_path / name, said.append)


@needs_cryptography
def test_what_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigError, match="PEM"):
        keys.require_valid(tmp_path / "ca.crt")
    with pytest.raises(ConfigError, match="cannot be read"):
        keys.require_valid(tmp_path / "missing.crt")


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # a child only asks to end with its parent
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_logs_are_their_owners(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    log.write_text("old\n")
    log.chmod(0o644)
    with running(Command((sys.executable, "-c", "print('new')"), {}), log) as process:
        process.wait()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.read_text() == "old\nnew\n"
