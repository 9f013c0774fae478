"""What a server, or somebody between it and a silo, may try: each is refused by the silo itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kinfolk.privacy.noise_shares import NoiseShares, SecureError
from kinfolk.secure.agreement import Agreement
from kinfolk.secure.messages import Attempt, KeyCard, ListSignature, signed
from kinfolk.secure.server import Gathering
from kinfolk.secure.session import sealing_content
from kinfolk.secure.silo import Silo
from tests.secure.worlds import FIRST, World, agreement_of, keys_of, pins_of, up_to_vectors, world_of

LATER = Attempt("run", 1)


def begun() -> tuple[list[Silo], list[KeyCard]]:
    world = world_of(agreement_of())
    return world.silos, [silo.begin(FIRST) for silo in world.silos]


def test_a_forged_sealing_key_is_refused() -> None:
    silos, cards = begun()
    own = X25519PrivateKey.generate().public_key().public_bytes_raw()
    for bad in ({"seal_key": own}, {"seal_key": own, "seal_signature": b""}, {"seal_key": cards[2].seal_key}):
        with pytest.raises(SecureError, match=r"not signed|the same key"):
            silos[0].share(FIRST, [cards[0], replace(cards[1], **bad), *cards[2:]])


def test_a_sealing_key_of_another_run_study_or_silo_is_refused() -> None:
    silos, cards = begun()
    elsewhere = replace(agreement_of(), study="another study")
    for bad in (
        world_of(agreement_of()).silos[1].begin(Attempt("other", 0)),
        world_of(elsewhere).silos[1].begin(FIRST),
        replace(world_of(agreement_of()).silos[2].begin(FIRST), name="silo1"),
    ):
        with pytest.raises(SecureError, match="not signed"):
            silos[0].share(FIRST, [cards[0], bad, *cards[2:]])


def shown(world: World, attempt: Attempt, to: dict[str, list[KeyCard]]) -> dict[str, dict[str, bytes]]:
    """The packets of silos that were shown these cards, by receiver and sender; a silo that refuses sends none."""
    found: dict[str, dict[str, bytes]] = {name: {} for name in world.names}
    for name, cards in to.items():
        with suppress(SecureError):
            for receiver, packet in world.silo(name).share(attempt, cards).sealed.items():
                found[receiver][name] = packet
    return found


FORGED = {"mask_key": X25519PrivateKey.generate().public_key().public_bytes_raw()}


@pytest.mark.parametrize("how", ["another mask key", "another seed", "of an earlier attempt", "of other terms"])
def test_a_forged_or_replayed_mask_key_masks_nothing(how: str) -> None:
    """Whoever is shown it cannot open the packet of its owner, who knows better: a vector is refused, and unpaid."""
    world = world_of(agreement_of())
    old = [silo.begin(FIRST) for silo in world.silos]
    foreign = world_of(agreement_of(noise=1.5)).silos[1]
    foreign.session = world.silos[1].session  # as if the silo itself took part on other terms
    cards = [silo.begin(LATER) for silo in world.silos]
    bad = {
        "another mask key": replace(cards[1], **FORGED),
        "another seed": replace(cards[1], seed_hash=bytes(32)),
        "of an earlier attempt": old[1],
        "of other terms": foreign.begin(LATER),
    }[how]
    lie = [cards[0], bad, *cards[2:]]
    packets = shown(world, LATER, {"silo1": cards, **{name: lie for name in world.names if name != "silo1"}})
    assert "silo1" in packets["silo0"]
    for name in ("silo0", "silo2"):
        with pytest.raises(SecureError, match="'silo1' was not sealed"):
            world.silo(name).mask(LATER, packets[name], world.messages[name])
    assert not world.paid
    without = {name: packet for name, packet in packets["silo0"].items() if name != "silo1"}
    world.silo("silo0").mask(LATER, without, world.messages["silo0"])
    own = world.silo("silo0")._secrets
    assert own is not None
    assert "silo1" not in own.masked_with, "four others suffice, and none of their masks is of the forged key"


def test_a_server_cannot_put_in_its_own_key_for_a_silo_or_leave_too_many_out() -> None:
    silos, cards = begun()
    with pytest.raises(SecureError, match="another key for this one"):
        silos[0].share(FIRST, [replace(cards[0], mask_key=cards[1].mask_key), *cards[1:]])
    with pytest.raises(SecureError, match="name a silo twice"):
        silos[0].share(FIRST, [*cards, cards[1]])
    with pytest.raises(SecureError, match="fewer than the 4"):
        silos[0].share(FIRST, cards[:3])
    stranger = keys_of(9)["silo8"]
    with pytest.raises(SecureError, match="not one of the agreement"):
        silos[0].share(FIRST, [*cards[:4], signed(replace(cards[4], name="silo8"), b"", stranger)])


def test_other_keys_for_the_second_question_are_refused() -> None:
    silos, cards = begun()
    first = silos[0].share(FIRST, cards)
    assert silos[0].share(FIRST, list(reversed(cards))) == first
    with pytest.raises(SecureError, match="other key cards"):
        silos[0].share(FIRST, cards[:4])


def test_a_round_that_was_begun_is_not_begun_again() -> None:
    silos, cards = begun()
    assert silos[0].begin(FIRST) == cards[0], "the same question has the same answer"
    silos[0].share(FIRST, cards)
    with pytest.raises(SecureError, match="begun already"):
        silos[0].begin(FIRST)
    silos[0].begin(LATER)
    with pytest.raises(SecureError, match="begun already"):
        silos[0].begin(Attempt("run", 0, 9))
    with pytest.raises(SecureError, match="no keys"):
        silos[0].share(FIRST, cards)


def test_packets_of_others_or_of_another_round_are_refused() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    again = world_of(agreement_of())
    fresh = Gathering(again.agreement, FIRST)
    for silo in again.silos:
        fresh.take(silo.begin(FIRST))
    for silo in again.silos:
        fresh.take(silo.share(FIRST, fresh.all_cards()))
    first, name = again.silos[0], again.names[0]
    packets = fresh.packets_for(name)
    for bad in (
        {**packets, "silo1": packets["silo2"]},
        {**packets, "silo1": view.packets_for(name)["silo1"]},
        {**packets, "silo1": fresh.packets_for("silo2")["silo1"]},
    ):
        with pytest.raises(SecureError, match="not sealed for this silo"):
            first.mask(FIRST, bad, again.messages[name])
    with pytest.raises(SecureError, match="4 of those with keys"):
        first.mask(FIRST, {sender: packets[sender] for sender in ("silo1", "silo2")}, again.messages[name])
    assert not again.paid


def test_one_vector_per_set_of_keys() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    silo, packets = world.silos[0], view.packets_for("silo0")
    other = world.messages["silo1"]
    assert silo.mask(FIRST, packets, other) == view.vectors["silo0"], "sent again, never computed again"
    del packets["silo4"]
    with pytest.raises(SecureError, match="asked for already"):
        silo.mask(FIRST, packets, other)
    assert len(world.paid) == 5


def test_a_payment_that_fails_leaves_no_vector_and_the_keys_are_used() -> None:
    world = world_of(agreement_of())

    def broke(_: Attempt) -> None:
        raise SecureError("beyond the budget")

    world.silos[0]._pay = broke
    with pytest.raises(SecureError, match="beyond the budget"):
        up_to_vectors(world)
    assert world.silos[0]._secrets is not None
    assert world.silos[0]._secrets.masked is None


def test_the_server_takes_no_answer_in_anothers_name() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    with pytest.raises(SecureError, match="not signed"):
        view.take(replace(view.vectors["silo1"], name="silo0"))
    bound, key = FIRST.bound(world.agreement), keys_of(5)["silo0"]
    with pytest.raises(SecureError, match="two different answers"):
        view.take(signed(replace(view.vectors["silo0"], vector=bytes(28)), bound, key))
    with pytest.raises(SecureError, match="another list"):
        view.take(signed(ListSignature("silo0", view.view, ("silo0",), {}), bound, key))


@pytest.mark.parametrize(
    ("silos", "survivors", "colluding"), [(5, 3, 1), (4, 2, 0), (6, 3, 0), (5, 6, 1), (300, 200, 0), (5, 5, 4)]
)
def test_thresholds_that_protect_nobody_are_refused(silos: int, survivors: int, colluding: int) -> None:
    with pytest.raises(SecureError, match="must be at least"):
        NoiseShares(silos, survivors, colluding)


def test_a_silo_insists_on_its_own_terms() -> None:
    """A server that makes up silos, asks for fewer survivors, or for less noise gets no silo at all."""
    mine = pins_of(agreement_of())
    key = keys_of(5)["silo0"]

    def join(agreement: Agreement) -> None:
        Silo(agreement, "silo0", key, mine, lambda _: None)

    join(agreement_of())
    for weaker, match in (
        (agreement_of(6, 4, 1), "does not know"),
        (agreement_of(5, 3, 0), "survivors=3"),
        (agreement_of(5, 4, 0), "colluding=0"),
        (agreement_of(noise=0.9), "deviation="),
        (replace(agreement_of(), keys=(*agreement_of().keys[:4], bytes(32))), "does not know"),
    ):
        with pytest.raises(SecureError, match=match):
            join(weaker)
    with pytest.raises(SecureError, match="more than the policy's 4"):
        Silo(agreement_of(), "silo0", key, replace(mine, most_silos=4), lambda _: None)
    with pytest.raises(SecureError, match="another key"):
        Silo(agreement_of(), "silo1", key, mine, lambda _: None)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"names": ("a", "a", "c", "d", "e")}, "must all differ"),
        ({"deviation": 500.0}, "below 1000"),
        ({"deviation": float("nan")}, "below 1000"),
        ({"deviation": 1e9}, "32 bits"),
        ({"clip": 0.0}, "must be positive"),
        ({"length": 0}, "must be positive"),
    ],
)
def test_agreements_that_cannot_hold_are_refused(change: dict[str, object], match: str) -> None:
    with pytest.raises(SecureError, match=match):
        replace(agreement_of(), **change)


LOW_ORDER = bytes(32)
"""A public key with which everybody agrees on zero."""


@pytest.mark.parametrize("which", ["mask_key", "seal_key"])
def test_a_key_that_nobody_can_have_made_costs_nobody_anything(which: str) -> None:
    """A colluder signs it: a server goes on without it, and under one that does not a silo notices before it pays."""
    world = world_of(agreement_of())
    colluder, honest = world.silos[4], world.silos[:4]
    card, own, key = colluder.begin(FIRST), colluder._secrets, keys_of(5)["silo4"]
    assert own is not None
    if which == "seal_key":
        signature = key.sign(sealing_content(world.agreement, "run", "silo4", LOW_ORDER))
        card = replace(card, seal_key=LOW_ORDER, seal_signature=signature)
    else:
        card = replace(card, mask_key=LOW_ORDER)
    own.card = card = signed(card, own.bound, key)
    cards, view = [*(silo.begin(FIRST) for silo in honest), card], Gathering(world.agreement, FIRST)
    with pytest.raises(SecureError, match="no silo can have made"):
        view.take(card)
    packets = shown(world, FIRST, dict.fromkeys(world.names, cards))
    for silo in honest:
        with pytest.raises(SecureError, match=r"no silo can have made|before the shares"):
            silo.mask(FIRST, packets[silo.name], world.messages[silo.name])
    assert not world.paid


def test_what_comes_too_late_does_not_change_what_the_others_were_shown() -> None:
    """A late card, packet or vector would make everybody else's answers worthless."""
    world = world_of(agreement_of())
    view = Gathering(world.agreement, FIRST)
    cards = [silo.begin(FIRST) for silo in world.silos]
    for card in cards[:4]:
        view.take(card)
    view.take(world.silos[0].share(FIRST, view.all_cards()))
    with pytest.raises(SecureError, match="too late"):
        view.take(cards[4])
    for silo in world.silos[1:4]:
        view.take(silo.share(FIRST, view.all_cards()))
    whole = up_to_vectors(world_of(agreement_of()))
    whole.signatures["silo0"] = ListSignature("silo0", whole.view, whole.heard(), {})
    vector = whole.vectors.pop("silo4")
    with pytest.raises(SecureError, match="too late"):
        whole.take(vector)


def test_an_opening_of_another_view_is_refused() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    for name in view.heard():
        view.take(world.silo(name).sign(FIRST, view.heard()))
    opening = replace(world.silos[0].open(FIRST, view.tags_for("silo0")), view=bytes(32), signature=b"")
    with pytest.raises(SecureError, match="opened other secrets"):
        view.take(signed(opening, FIRST.bound(world.agreement), keys_of(5)["silo0"]))
