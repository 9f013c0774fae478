"""The page of verdicts: every statement names functions that are there, or says that there is nothing to compute."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explain" / "theory.md"
VERDICTS = {"holds", "with a correction", "wrong as printed", "says nothing", "not testable", "ours"}
NUMBERED = {
    "Hu": "Lemma 1, Lemma 2, Lemma 3, Lemma 4, Theorem 1, Theorem 2, Theorem 3, Theorem 5, Corollary 4, Corollary 6, "
    "Journal's informal theorem 3, Journal's theorem 6, Journal's theorem 7, corollary 8",
    "Liang": "Lemma 1, Lemma 2, Lemma 3, Theorem 1, Theorem 2, Theorem 3, Theorem 4, Theorem 5, Theorem 6, "
    "corollary 1, Proposition 1, Proposition 2, Proposition 3, Equation 7, Table 1",
    "Liu": "Lemma 6.1, Lemma 6.2, Theorem 6.3, Corollary 6.4, Proposition 6.5, Proposition 6.6, Lemma 6.7, Theorem 6.8",
}
"""Of each paper's text."""


def rows() -> list[tuple[str, str, str, str]]:
    """Paper, statement, functions and verdict."""
    found, paper = [], ""
    for line in PAGE.read_text().splitlines():
        paper = line[3:].split(",")[0].split()[0] if line.startswith("## ") else paper
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0] != "statement" and not cells[0].startswith("---"):
            found.append((paper, *cells[:3]))
    return found


@pytest.mark.parametrize(("paper", "statement", "functions", "verdict"), rows())
def test_a_verdict_and_functions_that_are_there(paper: str, statement: str, functions: str, verdict: str) -> None:
    assert verdict in VERDICTS
    assert functions == "-" or re.fullmatch(r"`[\w.]+`(, `[\w.]+`)*", functions)
    for name in re.findall(r"`([\w.]+)`", functions):
        module, *path = name.split(".")
        found = reduce(getattr, path, importlib.import_module(f"kinfolk.theory.{module}"))
        assert path
        assert callable(found) or isinstance(found, property), f"{statement}: {name} is no function"


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_statement_has_a_row(paper: str) -> None:
    listed = [statement for found, statement, _, _ in rows() if found == paper]
    for statement in NUMBERED[paper].split(", "):
        assert any(re.search(rf"\b{re.escape(statement)}\b", words) for words in listed), statement
