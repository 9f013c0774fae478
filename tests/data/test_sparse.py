"""Sparse rows: the dense model's results, without dense rows."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import sparse

from kinfolk.data.client_data import RaggedData, together
from kinfolk.data.federation import DataError, from_rows
from kinfolk.data.sparse import entries, from_sparse
from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level
from kinfolk.training import loop
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training

WORDS, CLASSES = 12, 3


def bags(rows: int = 60) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    dense = generator.poisson(0.3, (rows, WORDS)).astype(np.float32)
    return sparse.csr_array(dense), generator.integers(0, CLASSES, rows), np.repeat(list("abcdef"), rows // 6)


@pytest.mark.slow
@pytest.mark.parametrize("level", [client_level(noise_multiplier=0.5), example_level(noise_multiplier=1.0, delta=1e-3)])
def test_a_sparse_run_is_the_dense_one(level: PrivacyLevel, tmp_path: Path) -> None:
    matrix, y, clients = bags()
    shared = []
    for name, data in (
        ("softmax", from_rows(matrix.toarray(), y, clients, outcome="classes", classes=CLASSES)),
        ("sparse_softmax", from_sparse(matrix, y, clients, outcome="classes", classes=CLASSES)),
    ):
        experiment = Experiment(
            seed=1,
            model=ModelChoice(name),
            training=Training(batch_size=4),
            privacy=level,
            phases=(Phase("mean_regularized", 4),),
        )
        run = loop.run(experiment, tmp_path, data=data)
        with np.load(run.public / "shared.npz") as file:
            shared.append({key: file[key] for key in file.files})
    assert max(np.abs(values).max() for values in shared[0].values()) > 0.01
    for key in shared[0]:
        np.testing.assert_allclose(shared[0][key], shared[1][key], rtol=1e-5, atol=1e-5)


def test_rows_are_never_written_out() -> None:
    """Ten thousand words and five hundred classes: entries and padding alone are kept, for unequal clients too."""
    generator = np.random.default_rng(1)
    matrix = sparse.random_array((400, 10_000), density=0.002, format="csr", rng=generator)
    x = entries(matrix)
    assert sum(part.nbytes for part in x.values()) < 0.01 * 4 * 400 * 10_000
    data = from_sparse(matrix, np.arange(400) % 500, np.arange(400) // 10, outcome="classes", classes=500)
    assert data.shape == (10_000,)
    rows = data.train.rows(np.array([3, 1]), 8)
    assert jax.tree.map(np.shape, rows.x) == {name: (2, 8, x[name].shape[1]) for name in x}


def test_unequal_clients_are_kept_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfolk.data.client_data.LARGE", 10)
    matrix, y, _ = bags()
    parts = [np.array([k]) for k in range(10)] + [np.arange(10, 60)]
    data = together(entries(matrix), y, parts)
    assert isinstance(data, RaggedData)
    rows = data.rows(np.array([10, 2]), 50)
    np.testing.assert_array_equal(rows.x["values"][0], entries(matrix)["values"][10:60])
    assert rows.mask.sum(axis=1).tolist() == [50, 1]


def test_dense_arrays_are_refused() -> None:
    with pytest.raises(DataError, match="use from_rows"):
        entries(np.ones((2, 2)))
