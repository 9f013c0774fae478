"""`kinfolk reproduce`: what it refuses, and what it says when something runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.reproduce import run as study
from benchmarks.studies.reproduce.records import Claim, Item, Measured, Point

ROOT = Path(study.__file__).parents[3]
FOUND = Measured({"ours": [Point(1.0, 0.5, 0.01)]}, "some data", 2, "epsilon 1")
ITEMS = {
    item.name: item
    for item in (
        Item("pmtl/figure-1", "t", "s", (Claim("c", lambda _: True),), lambda size: FOUND),
        Item("pmtl/table-2", "notation", "A list of words."),
    )
}


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two items, of which nothing is kept; no page is written."""
    monkeypatch.setattr(study, "items", lambda: ITEMS)
    monkeypatch.setattr(study, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(study, "write_pages", lambda known: None)
    monkeypatch.setattr("kinfolk.cli.pieces.UNFINISHED", str(tmp_path / "unfinished"))
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("foo",), "no item foo: `kinfolk reproduce` lists them"),
        (("pmtl/figure-2",), "no item pmtl/figure-2: did you mean pmtl/figure-1?"),
        (("--all", "pmtl"), "--all is everything, pmtl too"),
        (("pmtl/table-2", "--quick"), "pmtl/table-2 has nothing to measure (A list of words)"),
        (("--quick",), "--quick: nothing is run"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(words: tuple[str, ...], message: str, command: Any) -> None:
    code, out, err = command("reproduce", *words)
    assert code == 1
    assert message in " ".join(err.split())
    assert "usage" not in (out + err).lower()


def test_what_ran_is_one_json_object(command: Any) -> None:
    code, out, err = command("reproduce", "pmtl", "--quick", "--json")
    assert code == 0, err
    answer = json.loads(out)
    (row,) = answer["results"]
    assert (row["name"], row["verdict"], row["size"]) == ("pmtl/figure-1", "holds in shape", "quick")
    code, out, _ = command("reproduce", "pmtl/figure-1", "--quick")
    assert code == 0
    assert "holds in shape. So here too: c." in out


def test_inside_a_checkout_the_way_to_its_root_is_said(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "docs")
    code, _, err = command("reproduce")
    assert code == 1
    assert f"cd {ROOT}" in " ".join(err.split())
