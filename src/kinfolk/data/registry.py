"""Which federation an experiment works on: a built-in set by its name, or tables of one's own."""

from __future__ import annotations

from collections.abc import Callable

from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import DataError, Federation, pooled
from kinfolk.data.sets.femnist import femnist
from kinfolk.data.sets.har import har
from kinfolk.data.sets.mnist import rotated_mnist
from kinfolk.data.sets.school import school
from kinfolk.data.sets.synthetic import synthetic_schools
from kinfolk.data.tables.encode import load_tables

DATASETS: dict[str, Callable[..., Federation]] = {
    "synthetic_schools": lambda scaling, **options: synthetic_schools(**options),
    "school": school,
    "rotated_mnist": lambda scaling, test_fraction, seed: rotated_mnist(seed=seed),
    "femnist": lambda scaling, test_fraction, seed: femnist(seed=seed),
    "har": lambda scaling, test_fraction, seed: har(seed=seed),
}


def load_data(choice: DataChoice, seed: int) -> Federation:
    """A built-in data set, or tables, split by `seed`."""
    if choice.files:
        return load_tables(choice, seed)
    if choice.name not in DATASETS:
        raise DataError(f"data={choice.name!r} is not one of {sorted(DATASETS)}")
    federation = DATASETS[choice.name](scaling=choice.scaling, test_fraction=choice.test_fraction, seed=seed)
    return pooled(federation) if choice.pooled else federation
