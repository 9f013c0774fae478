"""How often prediction sets hold what comes out, on School and HAR, at client level (free) and example level (private).

Models are trained as `kinfolk train` does; half of each client's test rows says how far predictions reach, the other
half whether what comes out is within reach. Halves are drawn again twenty times.

python -m benchmarks.studies.evaluation.coverage
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from kinfolk import client_level, example_level
from kinfolk.data.federation import Federation
from kinfolk.data.sets.har import har
from kinfolk.data.sets.school import school
from kinfolk.metrics import conformal
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.training.experiment import Training
from kinfolk.training.prediction_sets import scores_of
from kinfolk.training.simulate import simulate

RESULTS = Path(__file__).parent / "results" / "coverage.json"
NOMINAL, SPLITS = (0.8, 0.9, 0.95), 20
Halves = list[tuple[np.ndarray, np.ndarray]]


def trained(data: Federation, privacy: PrivacyLevel, rounds: int, step_size: float) -> list[np.ndarray]:
    """How little each test row conforms to its client's model."""
    made = simulate(
        data,
        "mean_regularized",
        privacy,
        rounds=rounds,
        options={"step_size": step_size, "strength": 1.0},
        training=Training(batch_size=None),
    )
    state = made.step(made.init(seed=0), rounds)
    return scores_of(made.job.plan.model, made.models(state), data)


def halves(scores: list[np.ndarray], generator: np.random.Generator) -> Halves:
    """Each client's test rows in two."""
    mixed = [generator.permutation(own) for own in scores]
    return [(own[: len(own) // 2], own[len(own) // 2 :]) for own in mixed]


def free(parts: Halves, miss: float) -> list[float]:
    """Each client's reach, by its own rows."""
    return [conformal.quantile(known, miss) for known, _ in parts]


def private(
    parts: Halves, miss: float, edges: np.ndarray, epsilon: float, generator: np.random.Generator
) -> list[float]:
    """Each client's reach, by its own noisy table where it has rows enough, else by everybody's."""
    places = [np.searchsorted(edges, known, side="left") for known, _ in parts]
    tables = np.stack([np.bincount(own, minlength=len(edges) + 1) for own in places]).astype(float)
    counts = tables.sum(axis=1).astype(int)
    tables += generator.laplace(0, 1 / epsilon, tables.shape)
    how = {"scale": 1 / epsilon, "miss": miss}
    everybody = conformal.private_quantile(tables.sum(axis=0), edges, int(counts.sum()), parties=len(parts), **how)
    return [
        conformal.private_quantile(table, edges, int(n), parties=1, **how)
        if conformal.enough(int(n), len(edges), **how)
        else everybody
        for table, n in zip(tables, counts, strict=True)
    ]


def row(title: str, nominal: float, held: np.ndarray, reach: np.ndarray, own: float) -> dict[str, object]:
    """One line: coverage of a client's row, its standard error over clients, and how far predictions reach."""
    mean = np.nanmean(held, axis=0)
    finite = reach[np.isfinite(reach)]
    return {
        "case": title,
        "nominal": nominal,
        "coverage": float(np.nanmean(mean)),
        "error": float(np.nanstd(mean, ddof=1) / math.sqrt(len(mean))),
        "reach": float(np.median(finite)) if finite.size else None,
        "everything": float(1 - np.isfinite(reach).mean()),
        "own": own,
    }


def case(
    title: str, scores: list[np.ndarray], edges: np.ndarray | None, epsilon: float = 0.0
) -> list[dict[str, object]]:
    """All nominal values of one case; `edges`: None where quantiles are free."""
    found = []
    for nominal in NOMINAL:
        generator = np.random.default_rng(0)
        held, reaches, own = [], [], 1.0
        for _ in range(SPLITS):
            parts = halves(scores, generator)
            reach = (
                free(parts, 1 - nominal) if edges is None else private(parts, 1 - nominal, edges, epsilon, generator)
            )
            held.append([float((new <= far).mean()) for (_, new), far in zip(parts, reach, strict=True)])
            reaches.append(reach)
            if edges is not None:
                how = {"scale": 1 / epsilon, "miss": 1 - nominal}
                own = float(np.mean([conformal.enough(len(known), len(edges), **how) for known, _ in parts]))
        found.append(row(title, nominal, np.asarray(held), np.asarray(reaches), own))
    return found


def main() -> None:
    numbers, labels = np.asarray(conformal.NUMBERS), np.asarray(conformal.LABELS)
    pupils, walkers = school(test_fraction=0.5), har()
    apart = trained(pupils, example_level(epsilon=3.0), 20, 0.3)
    together = trained(pupils, client_level(epsilon=8.0), 20, 0.3)
    people = trained(walkers, client_level(epsilon=8.0), 30, 2.0)
    activities = trained(walkers, example_level(epsilon=8.0), 30, 2.0)
    rows = [
        *case("School, client level: own rows, free", together, None),
        *case("School, example level: noisy tables, epsilon 1", apart, numbers, 1.0),
        *case("HAR, client level: own rows, free", people, None),
        *case("HAR, example level: noisy tables, epsilon 1", activities, labels, 1.0),
    ]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    for one in rows:
        print(one)


if __name__ == "__main__":
    main()
