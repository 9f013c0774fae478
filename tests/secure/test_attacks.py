"""A server and as many colluding silos as are assumed, against honest ones: every way to split what these are shown."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kinfolk.privacy import noise_shares
from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.messages import KeyCard, signed
from kinfolk.secure.server import Gathering
from kinfolk.secure.session import sealing_content
from kinfolk.verify.secure_check import readable
from tests.secure.worlds import FIRST, World, agreement_of, branch, keys_of, up_to_vectors, world_of

SIZES = [(6, 4, 1), (5, 4, 2)]
"""Silos, survivors, colluding: as few survivors as are allowed."""
EVERYBODY, FEWER, NOT_ASKED = 0, 1, 2
"""The list with the victim, the one without it, or none."""


def plays(silos: int, survivors: int, colluding: int) -> Iterator[set[str]]:
    """Whom a server reads, for every choice of the list that each honest silo is shown. The last silos collude: they
    vouch for both lists to everybody, and tell the server all shares they hold."""
    world = world_of(agreement_of(silos, survivors, colluding, length=1))
    view = up_to_vectors(world)
    lists = view.heard(), view.heard()[1:]
    honest, colluders = world.names[: silos - colluding], world.names[silos - colluding :]
    for choice in itertools.product((EVERYBODY, FEWER, NOT_ASKED), repeat=len(honest)):
        if choice[0] == FEWER:  # the victim does not vouch for a list without itself
            continue
        (now, seen), twins = branch(world, view), [branch(world, view)[0] for _ in lists]
        said = {(name, one): twins[one].silo(name).sign(FIRST, lists[one]).tags for name in colluders for one in (0, 1)}
        shown = dict(zip(honest, choice, strict=True))
        for name, one in shown.items():
            if one != NOT_ASKED:
                said[name, one] = now.silo(name).sign(FIRST, lists[one]).tags
        for name, one in shown.items():
            tags = {who: found.get(name, b"") for (who, which), found in said.items() if which == one and who != name}
            with suppress(SecureError):
                seen.openings[name] = now.silo(name).open(FIRST, tags)
        yield readable(seen, [now.silo(name) for name in colluders])


@pytest.mark.parametrize(("silos", "survivors", "colluding"), SIZES)
def test_no_two_lists_are_ever_opened(silos: int, survivors: int, colluding: int) -> None:
    found = list(plays(silos, survivors, colluding))
    assert len(found) == 2 * 3 ** (silos - colluding - 1)
    assert not set().union(*found)


def test_with_one_survivor_fewer_than_is_allowed_two_lists_are_opened() -> None:
    """The same server, and a threshold that is refused otherwise: it reads the victim, so the test above can fail."""
    with mock.patch.object(noise_shares, "least_survivors", return_value=1):
        assert set().union(*plays(6, 3, 1)) == {"silo0"}


@pytest.mark.parametrize(("silos", "survivors", "colluding"), SIZES)
def test_no_two_sets_of_keys_get_vectors(silos: int, survivors: int, colluding: int) -> None:
    """Colluders have two sets of keys, and each honest silo is shown one or the other: only one set gets vectors."""
    names = agreement_of(silos, survivors, colluding).names
    honest, colluders = names[: silos - colluding], names[silos - colluding :]
    for choice in itertools.product((0, 1), repeat=len(honest)):
        world = world_of(agreement_of(silos, survivors, colluding, length=1))
        cards = {name: world.silo(name).begin(FIRST) for name in honest}
        twins = [world_of(world.agreement) for _ in (0, 1)]
        sent: list[list[KeyCard]] = [
            [*cards.values(), *(twin.silo(name).begin(FIRST) for name in colluders)] for twin in twins
        ]
        packets = {
            (which, name): silo.share(FIRST, sent[which]).sealed
            for which, name, silo in (
                *((which, name, world.silo(name)) for which, name in zip(choice, honest, strict=True)),
                *((which, name, twins[which].silo(name)) for which in (0, 1) for name in colluders),
            )
        }
        got = set()
        for which, name in zip(choice, honest, strict=True):
            own = {who: p[name] for (one, who), p in packets.items() if one == which and who != name}
            with suppress(SecureError):
                world.silo(name).mask(FIRST, own, world.messages[name])
                got.add(which)
        assert len(got) == (1 if max(choice.count(0), choice.count(1)) + colluding >= survivors else 0)
        if len(set(choice)) == 2:
            crossed = {who: p[honest[0]] for (_, who), p in packets.items() if who != honest[0]}
            with pytest.raises(SecureError):
                world.silo(honest[0]).mask(FIRST, crossed, world.messages[honest[0]])


def taken_over(world: World, name: str, of: str, key: Ed25519PrivateKey) -> KeyCard:
    """A card of a colluder that says that another silo's sealing key is its own."""
    card, bound = world.silo(name).begin(FIRST), FIRST.bound(world.agreement)
    seal_key = world.silo(of).begin(FIRST).seal_key
    signature = key.sign(sealing_content(world.agreement, "run", name, seal_key))
    return signed(replace(card, seal_key=seal_key, seal_signature=signature), bound, key)


def test_a_colluder_that_takes_anothers_sealing_key_for_its_own_gets_nobody_s_word() -> None:
    """What silo1 seals and vouches for to silo0 is not taken for the colluder's, though it is under the same secret."""
    world = world_of(agreement_of(6, 4, 1))
    cards = [silo.begin(FIRST) for silo in world.silos]
    lie = taken_over(world, "silo5", "silo1", keys_of(6)["silo5"])
    victim = world.silo("silo0")
    with pytest.raises(SecureError, match="same key"):
        victim.share(FIRST, [*cards[:5], lie])
    without = [cards[0], *cards[2:5], lie]
    sealed = {name: world.silo(name).share(FIRST, without).sealed for name in ("silo0", "silo2", "silo3", "silo4")}
    meant = world.silo("silo1").share(FIRST, cards[:5]).sealed["silo0"]
    packets = {name: found["silo0"] for name, found in sealed.items() if name != "silo0"}
    with pytest.raises(SecureError, match="'silo5' was not sealed"):
        victim.mask(FIRST, {**packets, "silo5": meant}, world.messages["silo0"])
    assert not world.paid
    own = victim._secrets
    assert own is not None
    assert own.pairs["silo5"] == world.silo("silo1")._secrets.pairs["silo0"], "the same secret"  # type: ignore[union-attr]


def test_what_is_opened_of_a_lost_silo_says_nothing_about_its_late_vector() -> None:
    """The server hides a vector, has the silo's mask key opened, and takes all pair masks off: its own mask stays."""
    world = world_of(agreement_of(6, 4, 1))
    view = up_to_vectors(world)
    late = view.vectors.pop("silo0")
    heard = view.heard()
    for name in heard:
        view.take(world.silo(name).sign(FIRST, heard))
    for name in heard:
        view.take(world.silo(name).open(FIRST, view.tags_for(name)))
    assert view._mask_key("silo0"), "opened"
    assert readable(view, [world.silo("silo5")]) == set()
    with pytest.raises(SecureError, match="too late"):
        view.take(late)
    with pytest.raises(SecureError, match="another list was signed"):
        world.silo("silo1").sign(FIRST, [*heard, "silo0"])


def test_a_silo_that_lost_its_sealing_key_is_not_taken_for_the_one_before() -> None:
    """After a restart it has a new key: with the old card nobody can answer for it, and with the new one it can."""
    world = world_of(agreement_of())
    old = world.silo("silo1").begin(FIRST)
    world.silo("silo1").erase()
    world.silo("silo1").session = None
    later = replace(FIRST, number=1)
    cards = [silo.begin(later) for silo in world.silos]
    assert cards[1].seal_key != old.seal_key
    stale = replace(cards[1], seal_key=old.seal_key, seal_signature=old.seal_signature)
    with pytest.raises(SecureError, match="another key for this one"):
        world.silo("silo1").share(later, [cards[0], stale, *cards[2:]])
    view = Gathering(world.agreement, later)
    for card in cards:
        view.take(card)
    for silo in world.silos:
        view.take(silo.share(later, view.all_cards()))
    for silo in world.silos:
        view.take(silo.mask(later, view.packets_for(silo.name), world.messages[silo.name]))
    assert len(view.heard()) == 5
