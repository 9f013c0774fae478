"""What Hu, Wu and Smith print: numbers of their tables, titles and axes of their figures."""

from __future__ import annotations

import numpy as np

from benchmarks.studies.reproduce.pmtl_measures import PERSONAL
from benchmarks.studies.reproduce.records import NO_PRIVACY, Printed
from kinfolk.accounting import composition
from kinfolk.privacy.release import Cost

GRID = [(sigma, clip) for clip in (0.2, 0.5, 1.0) for sigma in (0.02, 0.05, 0.1)]
TEXT_GRID = [(sigma, clip) for clip in (0.1, 0.5, 1.0) for sigma in (0.01, 0.05, 0.1)]
ONE = {"StackOverflow": [(0.01, 0.5)], "FEMNIST": [(0.01, 0.2)], "CelebA": [(0.02, 1.0)]}
"""Noise on the mean of a cohort, as the paper names it, and clip norm: the titles of figure 2's panels, which are in
the text of the version under review."""
CLIENTS_AND_ROUNDS = {"StackOverflow": (400, 600), "FEMNIST": (205, 1000), "CelebA": (515, 1000)}
"""Of the paper's figure 2."""
AXES = {"StackOverflow": (15.0, 13.6), "FEMNIST": (12.5, 12.1), "CelebA": (15.0, 14.0)}
"""Likewise: where its axis of epsilon ends in the text under review, and `epsilon_at_end`."""


def epsilon_at_end(what: str) -> float:
    """Where a curve of epsilon in figure 2 ends, by our account: 100 clients expected in a round, delta 1/m."""
    ((sigma, clip),), (clients, rounds) = ONE[what], CLIENTS_AND_ROUNDS[what]
    return composition.epsilon([(Cost("gaussian", sigma * 100 / clip, 100 / clients), rounds)], 1 / clients)


TABLE_1 = {
    "vanilla": "645 13 606 17  640 16 648 17  677 8 653 10  832 5 812 9",
    "mean": "608 11 581 11  605 8 574 6  656 9 633 3  826 11 839 6",
    "symmetric_kl": "486 12 348 5  584 12 481 16  662 16 565 19  839 6 829 15",
    "ewc": "663 2 556 1  595 4 607 7  681 2 666 1  837 1 823 5",
}
"""In thousandths: from MTL and its deviation, from global and its deviation, at epsilon 0.1, 0.8, 2 and without."""
TABLE_3 = {
    "StackOverflow": (0.318, (0.305, 0.323, 0.324), ()),
    "FEMNIST": (0.618, (0.371, 0.498, 0.621), (0.663, 0.640, 0.681)),
    "CelebA": (0.694, (0.633, 0.641, 0.667), (0.801, 0.817, 0.818)),
}
"""Alone; PMTL at epsilon 0.1, 0.8 and 2; with the best fine-tuning."""


def table_1_numbers() -> tuple[Printed, ...]:
    cells = {name: np.array([int(n) / 1000 for n in row.split()]).reshape(4, 2, 2) for name, row in TABLE_1.items()}
    return tuple(
        Printed(f"{start}: {name}", own[k, side, 0], f"{start}: {name}", epsilon, 0.03, spread=own[k, side, 1])
        for name, own in cells.items()
        for k, epsilon in enumerate((0.1, 0.8, 2.0, NO_PRIVACY))
        for side, start in enumerate(("personal", "global"))
    )


def pmtl_numbers(what: str) -> tuple[Printed, ...]:
    """What table 3 says of the curve of PMTL."""
    values = zip(TABLE_3[what][1], (0.1, 0.8, 2.0), strict=True)
    return tuple(Printed(PERSONAL, value, PERSONAL, epsilon, 0.03, source="table 3") for value, epsilon in values)
