"""Every planted bug is caught by the check that says so, and the same check passes the sound version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.gallery import BUGS, CHECKS, table

PAGE = Path(__file__).parents[2] / "docs" / "explain" / "planted-bugs.md"
CHAINED = "a client chained to the previous one, in a release"
LONG = ("a gate used twice", "a gate used twice, in a release", "a client chained to the previous one", CHAINED)
QUICK = [
    pytest.param(bug, id=bug.name, marks=pytest.mark.slow if bug.name in LONG else ())
    for bug in BUGS
    if bug.check != "attack"
]
ATTACKED = [bug for bug in BUGS if bug.check == "attack"]


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_caught(bug) -> None:
    assert bug.broken(), f"{bug.check} found nothing"
    assert bug.sound() == []


@pytest.mark.slow
@pytest.mark.parametrize("bug", ATTACKED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught_by_attack(bug) -> None:
    assert bug.broken(), "the claim was not refuted"
    assert bug.sound() == []


def test_the_page_shows_the_gallery() -> None:
    assert PAGE.read_text() == table(), "run: python -m tests.verify.test_gallery"
    assert {bug.check for bug in BUGS} == set(CHECKS)
    assert len({bug.name for bug in BUGS}) == len(BUGS)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(table())
