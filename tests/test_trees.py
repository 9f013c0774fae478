"""Structures of pytrees: programs are found by them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import batching, trees
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local import Local
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.personalize import AFTERWARDS
from kinfolk.privacy.choice import NoisyMin
from kinfolk.privacy.mechanisms import GaussianSum, LaplaceSum
from kinfolk.types import Tree


def test_no_two_methods_have_the_same_structure() -> None:
    """A program compiled for one method must never be found for another, whatever their fields."""
    made = [*(entry.make() for entry in REGISTRY.values()), *(kind() for kind in AFTERWARDS.values())]
    structures = [jax.tree.structure(value) for value in made]
    for place, one in enumerate(structures):
        assert all(one != other for other in structures[:place]), made[place]
    assert jax.tree.structure(Local(0.1)) != jax.tree.structure(FedAvg(0.1))
    assert jax.tree.structure(FedAvg(0.1)) == jax.tree.structure(FedAvg(0.2))
    assert jax.tree.structure(MeanRegularized(rule="increment")) != jax.tree.structure(MeanRegularized())


@pytest.mark.parametrize("value", [FedAvg(0.1), MeanRegularized(0.5, rule="increment"), NoisyMin(1.0, 2.0, "loss")])
def test_a_registered_dataclass_survives_a_map(value: object) -> None:
    assert jax.tree.map(lambda leaf: leaf, value) == value
    assert [path for path, _ in jax.tree_util.tree_leaves_with_path(value)]


def test_mechanisms_differ_too() -> None:
    assert jax.tree.structure(GaussianSum(1.0, 1.0)) != jax.tree.structure(LaplaceSum(1.0, 1.0))
    assert trees.size({"a": jnp.ones((2, 3))}) == 6


@pytest.mark.parametrize("norm", [trees.squared_norm, batching.squared_norm])
@pytest.mark.parametrize("size", [1, 63, 10_000, 10_001, 48_608, 64 * 300 + 63])
def test_every_value_counts_once_in_a_norm(size: int, norm: Callable[[Tree], jax.Array]) -> None:
    """Powers of two that add up exactly, and random ones, alone and for many at once."""
    places = np.array(sorted({0, size // 2, size - 1}))
    few = np.zeros(size, np.float32)
    few[places] = 2.0 ** np.arange(len(places))
    assert float(norm({"a": jnp.asarray(few), "b": ()})) == float(np.square(few).sum())
    many = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    found = jax.vmap(lambda row: norm([row, row.reshape(1, -1)]))(jnp.asarray(many))
    np.testing.assert_allclose(found, 2 * np.square(many.astype(np.float64)).sum(axis=1), rtol=1e-5)


def test_rows_are_found_whatever_their_shape() -> None:
    tree = {"image": jnp.arange(24.0).reshape(3, 2, 2, 2), "number": jnp.arange(3), "nothing": jnp.zeros((3, 0))}
    found = batching.rows_at(tree, jnp.array([2, 0, 9]))
    for name, leaf in tree.items():
        np.testing.assert_array_equal(found[name], np.asarray(leaf)[[2, 0, 2]])
