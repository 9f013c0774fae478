"""A few small runs, each trained once, when a test first asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from kinfolk import Experiment, Phase, client_level, example_level, none, run
from kinfolk.data import registry
from kinfolk.data.sets.catalogue import BuiltIn
from kinfolk.data.sets.synthetic import synthetic_schools
from kinfolk.training.run_directory import Run

SMALL = {"clients": 12, "features": 2, "least": 10, "most": 40}
PERSONAL = Experiment(
    name="personal",
    seed=0,
    seeds=2,
    privacy=example_level(epsilon=2.0, delta=1e-4),
    phases=(Phase("mean_regularized", 6, {"strength": 0.5}),),
    why="method=mean_regularized was picked: theory expects <much>",
)
EXPERIMENTS = {
    "personal": PERSONAL,
    "alone": replace(PERSONAL, name="alone", phases=(Phase("local", 6),)),
    "stronger": replace(PERSONAL, name="stronger", privacy=example_level(epsilon=8.0, delta=1e-4)),
    "client": replace(PERSONAL, name="client", privacy=client_level(epsilon=4.0, delta=1e-3, cohort=6)),
    "released": replace(PERSONAL, name="released", seed=None, seeds=1),
    "again": replace(
        PERSONAL,
        name="again",
        seed=None,
        seeds=1,
        privacy=example_level(epsilon=50.0, delta=1e-4, noise_multiplier=3.0),
    ),
    "open": replace(PERSONAL, name="open", privacy=none()),
}

Trained = Callable[[str], Run]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run by its name in EXPERIMENTS."""
    where = tmp_path_factory.mktemp("reported")

    @cache
    def find(name: str) -> Run:
        experiment = EXPERIMENTS[name]
        ledger = where / f"{name}.jsonl" if experiment.seed is None else None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KINFOLK_KEYS", str(where / "keys"))
            patch.setitem(registry.BUILT_IN, "synthetic_schools", BuiltIn(partial(synthetic_schools, **SMALL)))
            return run(experiment, where, ledger=ledger)

    return find


@pytest.fixture(scope="session")
def full_page(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything on it."""
    from kinfolk.report import write_report

    paths = [trained(name).path for name in ("personal", "alone", "stronger")]
    return write_report(paths, tmp_path_factory.mktemp("page") / "full.html", with_private=True)
