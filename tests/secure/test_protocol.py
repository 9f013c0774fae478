"""Secure sums: exact whoever drops out, given up below the threshold, and nothing opened that should not be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kinfolk.secure.messages import Attempt
from kinfolk.secure.one_process import EXCHANGES, Lost, rehearse
from kinfolk.secure.server import Aborted, Gathering
from kinfolk.secure.silo import Silo
from tests.secure.worlds import FIRST, World, agreement_of, branch, recorded, up_to_vectors, world_of


def finished(world: World, view: Gathering) -> np.ndarray:
    """The last two exchanges with whoever was heard."""
    heard = view.heard()
    for name in heard:
        view.take(world.silo(name).sign(view.attempt, heard))
    for name in heard:
        view.take(world.silo(name).open(view.attempt, view.tags_for(name)))
    return view.total()


@pytest.mark.slow
def test_the_sum_is_exact_for_every_pattern_of_drop_outs_of_8_silos() -> None:
    world = world_of(agreement_of(8, 5, 1, length=3))
    with recorded(world):
        view = up_to_vectors(world)
    tried = {True: 0, False: 0}
    for count in range(9):
        for heard in itertools.combinations(world.names, count):
            silos, seen = branch(world, view)
            seen.vectors = {name: view.vectors[name] for name in heard}
            tried[count >= 5] += 1
            if count < 5:
                with pytest.raises(Aborted, match="5 are needed"):
                    seen.heard()
            else:
                assert (finished(silos, seen) == world.sum_of(heard)).all()
    assert tried == {True: 93, False: 163}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_the_sum_is_exact_when_a_silo_is_lost_in_any_exchange(exchange: str) -> None:
    world = world_of(agreement_of())
    gone = world.names[2]
    with recorded(world):
        made = rehearse(world.silos, FIRST, world.messages, Lost(**{exchange: (gone,)}))
    heard = made.view.heard()
    assert not made.refusals
    assert (gone in heard) == (exchange in ("list", "opening"))
    assert (made.total == world.sum_of(heard)).all()
    assert (gone in [name for name, _ in world.paid]) == (exchange in ("list", "opening"))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_an_attempt_with_too_few_silos_is_given_up_and_paid_again(exchange: str) -> None:
    world = world_of(agreement_of())
    with pytest.raises(Aborted, match="4 are needed"):
        _ = rehearse(world.silos, FIRST, world.messages, Lost(**{exchange: world.names[:2]})).total
    paid = {"keys": 0, "shares": 0, "vector": 3, "list": 5, "opening": 5}[exchange]
    assert len(world.paid) == paid
    with recorded(world):
        again = rehearse(world.silos, Attempt("run", 0, 1), world.messages)
    assert (again.total == world.sum_of(world.names)).all()
    assert len(world.paid) == paid + 5


def test_a_round_with_new_keys_has_new_masks_and_new_noise() -> None:
    world = world_of(agreement_of(length=2000))
    first = rehearse(world.silos, FIRST, world.messages).view
    second = rehearse(world.silos, Attempt("run", 1), world.messages).view
    for name in world.names:
        one, two = (np.frombuffer(view.vectors[name].vector, "<u4") for view in (first, second))
        apart = (one - two).view(np.int32) / 2.0**31
        assert abs(apart.std() - 1 / np.sqrt(3)) < 0.05, "as far apart as uniform numbers"
        assert first.cards[name] != second.cards[name]


def test_a_masked_vector_alone_is_uniform() -> None:
    world = world_of(agreement_of(length=20_000))
    view = up_to_vectors(world)
    for vector in view.vectors.values():
        tops = np.frombuffer(vector.vector, "<u4") >> 28
        counts = np.bincount(tops.astype(int), minlength=16)
        assert (np.square(counts - 1250) / 1250).sum() < 60


def lie(silo: Silo) -> None:
    """Makes a silo open other shares than it was sent."""
    own = silo._secrets
    assert own is not None
    own.shares = {name: (bytes(33), bytes(33)) for name in own.shares}


@pytest.mark.parametrize("lost", [(), ("silo4",)])
def test_one_silo_that_sends_wrong_shares_is_found_and_left_out(lost: tuple[str, ...]) -> None:
    world = world_of(agreement_of(6, 4, 1))
    with recorded(world):
        view = up_to_vectors(world)
    for name in lost:
        del view.vectors[name]
    lie(world.silos[2])
    assert (finished(world, view) == world.sum_of(view.heard())).all()
    assert view.liar == world.agreement.place("silo2")


def test_wrong_shares_that_nobody_can_stand_in_for_stop_the_sum() -> None:
    for liars, silos in ((1, 4), (2, 6)):
        world = world_of(agreement_of(silos, 4, 1))
        view = up_to_vectors(world)
        for silo in world.silos[:liars]:
            lie(silo)
        with pytest.raises(Aborted, match="wrong ones"):
            finished(world, view)
