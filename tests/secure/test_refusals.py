"""What a server, or somebody between it and a silo, may try: each is refused by the silo itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinfolk.privacy.noise_shares import NoiseShares, SecureError
from kinfolk.secure.agreement import Agreement
from kinfolk.secure.messages import Attempt, KeyCard, ListSignature, signed
from kinfolk.secure.server import Gathering
from kinfolk.secure.silo import Silo
from tests.secure.worlds import FIRST, agreement_of, branch, keys_of, pins_of, up_to_vectors, world_of

LATER = Attempt("run", 1)


def begun() -> tuple[list[Silo], list[KeyCard]]:
    world = world_of(agreement_of())
    return world.silos, [silo.begin(FIRST) for silo in world.silos]


def test_a_forged_key_is_refused() -> None:
    silos, cards = begun()
    other = world_of(agreement_of()).silos[1].begin(FIRST)
    for bad in (replace(cards[1], mask_key=other.mask_key), replace(other, signature=bytes(64))):
        with pytest.raises(SecureError, match="not signed"):
            silos[0].share(FIRST, [cards[0], bad, *cards[2:]])


def test_a_replayed_key_of_another_round_attempt_or_run_is_refused() -> None:
    for attempt in (LATER, Attempt("run", 0, 1), Attempt("other", 0)):
        silos, _ = begun()
        cards = [silo.begin(attempt) for silo in silos]
        old = world_of(agreement_of()).silos[1].begin(FIRST)
        with pytest.raises(SecureError, match="not signed"):
            silos[0].share(attempt, [cards[0], old, *cards[2:]])


def test_a_key_under_another_agreement_is_refused() -> None:
    silos, cards = begun()
    foreign = world_of(agreement_of(noise=1.5)).silos[1].begin(FIRST)
    with pytest.raises(SecureError, match="not signed"):
        silos[0].share(FIRST, [cards[0], foreign, *cards[2:]])


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


def test_a_premature_opening_is_refused() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    silo, heard = world.silos[0], view.heard()
    with pytest.raises(SecureError, match="before the list"):
        silo.open(FIRST, [])
    others = [world.silo(name).sign(FIRST, heard) for name in heard]
    for few in ([], others[:3], [others[0]] * 5):
        with pytest.raises(SecureError, match="4 survivors' are needed"):
            silo.open(FIRST, few)
    assert silo.open(FIRST, others[:4]).seeds.keys() == set(heard)


def test_a_forged_signature_of_the_list_opens_nothing() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    heard = view.heard()
    others = [world.silo(name).sign(FIRST, heard) for name in heard]
    forged = signed(replace(others[1], name="silo1"), b"of another round", keys_of(5)["silo1"])
    with pytest.raises(SecureError, match="not signed"):
        world.silos[0].open(FIRST, [others[0], forged, *others[2:]])
    unsigned = replace(others[1], signature=b"")
    with pytest.raises(SecureError, match="not signed"):
        world.silos[0].open(FIRST, [others[0], unsigned, *others[2:]])


def test_a_split_view_opens_nothing() -> None:
    """The server shows two lists, to get one silo's seed from some and its mask key from others."""
    world = world_of(agreement_of(6, 4, 1))
    view = up_to_vectors(world)
    everybody, fewer = view.heard(), tuple(name for name in view.heard() if name != "silo5")
    first = [world.silo(name).sign(FIRST, everybody) for name in ("silo0", "silo1", "silo2")]
    second = [world.silo(name).sign(FIRST, fewer) for name in ("silo3", "silo4")]
    with pytest.raises(SecureError, match="another list was signed"):
        world.silo("silo0").sign(FIRST, fewer)
    for silo, shown in (("silo0", [*first, *second]), ("silo3", [*second, *first])):
        with pytest.raises(SecureError, match="signed another list"):
            world.silo(silo).open(FIRST, shown)
    for silo, shown in (("silo0", first), ("silo3", second)):
        with pytest.raises(SecureError, match="4 survivors' are needed"):
            world.silo(silo).open(FIRST, shown)


def test_colluding_signers_cannot_open_two_lists() -> None:
    """Even if all colluders sign both lists, only one of the two finds enough honest signers."""
    world = world_of(agreement_of(6, 4, 1))
    view = up_to_vectors(world)
    everybody, fewer = view.heard(), tuple(name for name in view.heard() if name != "silo4")
    colluder = branch(world, view)[0].silo("silo5")
    both = [world.silo("silo5").sign(FIRST, everybody), colluder.sign(FIRST, fewer)]
    first = [*(world.silo(n).sign(FIRST, everybody) for n in ("silo0", "silo1", "silo4")), both[0]]
    second = [*(world.silo(n).sign(FIRST, fewer) for n in ("silo2", "silo3")), both[1]]
    assert world.silo("silo0").open(FIRST, first).seeds.keys() == set(everybody)
    with pytest.raises(SecureError, match="4 survivors' are needed"):
        world.silo("silo2").open(FIRST, second)


def test_a_list_must_be_long_enough_of_known_silos_and_have_the_silo_that_sent() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    silo = world.silos[0]
    for names, match in (
        (view.heard()[:3], "fewer than the 4"),
        ([*view.heard()[1:]], "without this silo"),
        ([*view.heard(), "stranger"], "strangers"),
        (["silo0"] * 5, "strangers"),
    ):
        with pytest.raises(SecureError, match=match):
            silo.sign(FIRST, names)


def test_never_both_secrets_of_a_silo() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    heard = ("silo0", "silo1", "silo2", "silo3")
    signatures = [world.silo(name).sign(FIRST, heard) for name in heard]
    opening = world.silos[0].open(FIRST, signatures)
    assert set(opening.seeds) == set(heard)
    assert set(opening.mask_keys) == {"silo4"}
    assert world.silos[0].open(FIRST, signatures) == opening
    del view


def test_the_server_takes_no_answer_in_anothers_name() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    with pytest.raises(SecureError, match="not signed"):
        view.take(replace(view.vectors["silo1"], name="silo0"))
    bound, key = FIRST.bound(world.agreement), keys_of(5)["silo0"]
    with pytest.raises(SecureError, match="two different answers"):
        view.take(signed(replace(view.vectors["silo0"], vector=bytes(28)), bound, key))
    with pytest.raises(SecureError, match="another list"):
        view.take(signed(ListSignature("silo0", view.view, ("silo0",)), bound, key))


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
    """A colluder signs it: an honest silo must notice before it pays, and go on without the colluder."""
    world = world_of(agreement_of())
    cards = [silo.begin(FIRST) for silo in world.silos]
    bad = replace(cards[4], **{which: LOW_ORDER}, signature=b"")
    bad = signed(bad, FIRST.bound(world.agreement), keys_of(5)["silo4"])
    honest = world.silos[:4]
    for silo in honest:
        with pytest.raises(SecureError, match="no silo can have made"):
            silo.share(FIRST, [*cards[:4], bad])
    view = Gathering(world.agreement, FIRST)
    for card in cards[:4]:
        view.take(card)
    for silo in honest:
        view.take(silo.share(FIRST, view.all_cards()))
    for silo in honest:
        view.take(silo.mask(FIRST, view.packets_for(silo.name), world.messages[silo.name]))
    assert len(world.paid) == 4
    assert len(view.heard()) == 4


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
    whole.signatures["silo0"] = ListSignature("silo0", whole.view, whole.heard())
    vector = whole.vectors.pop("silo4")
    with pytest.raises(SecureError, match="too late"):
        whole.take(vector)


def test_an_opening_of_another_view_is_refused() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    signatures = [world.silo(name).sign(FIRST, view.heard()) for name in view.heard()]
    for signature in signatures:
        view.take(signature)
    opening = replace(world.silos[0].open(FIRST, signatures), view=bytes(32), signature=b"")
    with pytest.raises(SecureError, match="opened other secrets"):
        view.take(signed(opening, FIRST.bound(world.agreement), keys_of(5)["silo0"]))
