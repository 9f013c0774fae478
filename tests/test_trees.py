"""Structures of pytrees: programs are found by them."""

import jax
import pytest

from kinfolk import trees
from kinfolk.afterwards import AFTERWARDS
from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local import Local
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.privacy.choice import NoisyMin
from kinfolk.privacy.mechanisms import GaussianSum, LaplaceSum


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
    assert trees.size({"a": jax.numpy.ones((2, 3))}) == 6
