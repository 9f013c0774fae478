"""Pieces of work: in their order, kept as they come, each with its own error; what there is of Ray without Ray."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training import on_ray
from kinfolk.training.experiment import Experiment
from kinfolk.training.pieces import Result, each, require_simulation
from tests.training.pieces_of_work import scaled

NUMBERS = np.arange(3, dtype=np.float32)


def test_a_piece_that_fails_has_its_own_error_and_the_others_are_kept(tmp_path: Path) -> None:
    heard: list[str] = []
    pieces = {"one": 1.0, "bad": -1.0, "worse": -2.0, "two": 2.0}
    with pytest.raises(ValueError, match="piece=-1 must be at least 0") as stop:
        each(scaled, NUMBERS, pieces, kept=tmp_path, told=lambda name, _: heard.append(name))
    (note,) = stop.value.__notes__
    assert note.startswith("That was bad; 2 of 4 pieces are done. worse failed too: piece=-2")
    assert heard == list(pieces)

    begun: list[float] = []

    def mended(common: np.ndarray, piece: float) -> Result:
        begun.append(piece)
        return scaled(common, abs(piece))

    found = each(mended, NUMBERS, pieces, kept=tmp_path)
    assert begun == [-1, -2], "what was finished is not computed again"
    assert [(name, result.values["sum"]) for name, result in found.items()] == [
        ("one", 3),
        ("bad", 3),
        ("worse", 6),
        ("two", 6),
    ]
    np.testing.assert_array_equal(found["two"].arrays["all"], 2 * NUMBERS)
    assert found["two"].arrays["all"].dtype == np.float32


def test_results_are_the_same_kept_or_not(tmp_path: Path) -> None:
    def odd(common: None, piece: float) -> Result:
        return Result({"pair": (piece, None), "nothing": float("inf")})

    fresh, kept, again = (each(odd, None, {"a": 0.1}, kept=kept) for kept in (None, tmp_path, tmp_path))
    assert fresh["a"].values == kept["a"].values == again["a"].values == {"pair": [0.1, None], "nothing": float("inf")}


def test_a_release_is_no_piece_of_work() -> None:
    require_simulation(Experiment(seed=0))
    with pytest.raises(PrivacyError, match=r"noise would be drawn twice for one charge. Give a seed"):
        require_simulation(Experiment())


@pytest.mark.parametrize("on", ["spark", "ray://head:10001", "head", "head:", ":6379"])
def test_a_place_that_is_none_is_refused(on: str) -> None:
    with pytest.raises(ConfigError, match=r"neither 'ray' .this machine. nor HOST:PORT"):
        each(scaled, NUMBERS, {"one": 1.0}, on=on)


def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"on='{address}': nothing answers there .*`ray start --head"):
            each(scaled, NUMBERS, {"one": 1.0}, on=address)


def test_where_ray_is_missing_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert each(scaled, NUMBERS, {}, on="ray") == {}, "nothing is left to do, and nothing is started"
    with pytest.raises(ConfigError, match=r"pip install 'kinfolk\[ray\]'"):
        each(scaled, NUMBERS, {"one": 1.0}, on="ray")


def test_a_node_with_another_version_is_refused() -> None:
    other = {**on_ray._versions(), "jax": "0.1"}
    with pytest.raises(ConfigError, match=r"has jax .* instead of 0.1: numbers may differ"):
        on_ray._done(b"", other, 1.0)


def test_one_module_knows_ray() -> None:
    source = Path(on_ray.__file__).parents[1]
    users = {path.name for path in source.rglob("*.py") if re.search(r"import ray\b|[\"']ray[.\"']", path.read_text())}
    assert users == {"on_ray.py"}
