"""The C-index and Kaplan and Meier's curve of tables, beside those of rows."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk import courses
from kinfolk.metrics import survival
from kinfolk.metrics.intervals import Measured, measured
from kinfolk.metrics.noisy_table import NoisyTable
from kinfolk.metrics.scores import GUESSES

EDGES = (0.3, 0.7, 1.2, 2.0)
ENDS = np.linspace(-2, 2, 9)


def people(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, times and events, with proportional hazards and people who are lost."""
    generator = np.random.default_rng(seed)
    score = generator.standard_normal(count)
    time, lost = generator.exponential(np.exp(-score)), generator.uniform(0, 3, count)
    return score, np.minimum(time, lost), time <= lost


def table_of(score: np.ndarray, time: np.ndarray, event: np.ndarray) -> np.ndarray:
    table = np.zeros((len(ENDS) + 1, 2 * len(EDGES) + 1))
    np.add.at(table, (np.searchsorted(ENDS, score), courses(time, event, EDGES)), 1)
    return table


def test_a_large_table_tells_what_its_rows_do() -> None:
    score, time, event = people(20_000)
    table = table_of(score, time, event)
    end = np.minimum(time, EDGES[-1])
    of_rows = survival.concordance(score[:3000], end[:3000], (event & (time <= EDGES[-1]))[:3000])
    assert float(survival.concordance_of_tables(table[None], ENDS, GUESSES[0])[0]) == pytest.approx(of_rows, abs=0.01)
    hazard = np.random.default_rng(1).exponential(np.exp(-score))
    wanted = [(hazard > edge).mean() for edge in EDGES]
    np.testing.assert_allclose(survival.kaplan_meier(table.sum(axis=0)[None])[0], wanted, atol=0.015)


def test_concordance_of_rows_counts_pairs() -> None:
    score, time, event = people(40)
    pairs = [(i, j) for i in range(40) for j in range(40) if event[i] and time[i] < time[j]]
    wanted = np.mean([score[i] > score[j] for i, j in pairs])
    assert survival.concordance(score, time, event) == pytest.approx(float(wanted))
    assert survival.concordance(np.zeros(40), time, event) == 0.5
    assert survival.concordance(score, time, np.zeros(40, bool)) == 0.5


def test_intervals_hold_the_truth_and_curves_never_rise() -> None:
    score, time, event = people(3000, 99)
    truth = survival.concordance(score, np.minimum(time, EDGES[-1]), event & (time <= EDGES[-1]))
    own, hits, found = survival.measures(ENDS, EDGES, "years"), 0, []
    for seed in range(20):
        cells = table_of(*people(500, seed)) + np.random.default_rng(seed).laplace(0, 1.0, (10, 9))
        found = survival.falling(measured(NoisyTable(cells, 500, 1.0), own))
        hits += found[0].low <= truth <= found[0].high
        left = [one.value for one in found[1:]]
        assert left == sorted(left, reverse=True)
    assert hits >= 17
    assert found[1].name == "share without the event by 0.3 years"
    assert survival.falling([Measured("AUC", 0.5, 0.4, 0.6)])[0].value == 0.5
