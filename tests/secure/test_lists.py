"""The survivors' list: what a silo opens, and against whose word."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.messages import Attempt, ListSignature
from tests.secure.worlds import FIRST, agreement_of, branch, up_to_vectors, world_of

LATER = Attempt("run", 1)


def tags_for(name: str, said: Iterable[ListSignature]) -> dict[str, bytes]:
    return {one.name: one.tags[name] for one in said if one.name != name}


def test_a_premature_opening_is_refused() -> None:
    world = world_of(agreement_of())
    view = up_to_vectors(world)
    silo, heard = world.silos[0], view.heard()
    with pytest.raises(SecureError, match="before the list"):
        silo.open(FIRST, {})
    tags = tags_for("silo0", [world.silo(name).sign(FIRST, heard) for name in heard])
    for few in ({}, {"silo1": tags["silo1"], "silo2": tags["silo2"]}, {**dict.fromkeys(heard, tags["silo1"])}):
        with pytest.raises(SecureError, match="vouch for this very list, and 4 must"):
            silo.open(FIRST, few)
    del tags["silo4"]
    assert silo.open(FIRST, tags).seeds.keys() == set(heard)


def test_tags_that_are_forged_reflected_replayed_or_anothers_do_not_count() -> None:
    world = world_of(agreement_of())
    earlier = up_to_vectors(world)
    before = [world.silo(name).sign(FIRST, earlier.heard()) for name in earlier.heard()]
    view = up_to_vectors(world, LATER)
    said = [world.silo(name).sign(LATER, view.heard()) for name in view.heard()]
    right, own = tags_for("silo0", said), said[0].tags
    assert tags_for("silo0", before).keys() == right.keys()
    for what, bad in {
        "none": {},
        "made up": dict.fromkeys(right, bytes(32)),
        "cut off": {name: tag[:16] for name, tag in right.items()},
        "its own, sent back": own,
        "of the last attempt": tags_for("silo0", before),
        "for another silo": {one.name: one.tags["silo4"] for one in said if one.name != "silo4"},
        "exchanged": dict(zip(right, [*list(right.values())[1:], right["silo1"]], strict=True)),
        "of strangers": {f"stranger{k}": tag for k, tag in enumerate(right.values())},
    }.items():
        with pytest.raises(SecureError, match="1 survivors vouch"):
            world.silos[0].open(LATER, bad)
        with pytest.raises(SecureError, match="3 survivors vouch"):
            world.silos[0].open(LATER, {**bad, "silo2": right["silo2"], "silo3": right["silo3"], "silo0": b"me"})
        assert what
    assert world.silos[0].open(LATER, {**right, "silo1": bytes(32)}).seeds, "one wrong tag stops nobody"


def test_a_split_view_opens_nothing() -> None:
    """The server shows two lists, to get one silo's seed from some and its mask key from others."""
    world = world_of(agreement_of(6, 4, 1))
    view = up_to_vectors(world)
    everybody, fewer = view.heard(), tuple(name for name in view.heard() if name != "silo5")
    first = [world.silo(name).sign(FIRST, everybody) for name in ("silo0", "silo1", "silo2")]
    second = [world.silo(name).sign(FIRST, fewer) for name in ("silo3", "silo4")]
    with pytest.raises(SecureError, match="another list was signed"):
        world.silo("silo0").sign(FIRST, fewer)
    for silo, same in (("silo0", 3), ("silo3", 2)):
        with pytest.raises(SecureError, match=f"{same} survivors vouch"):
            world.silo(silo).open(FIRST, tags_for(silo, [*first, *second]))


def test_colluding_signers_cannot_open_two_lists() -> None:
    """Even if all colluders sign both lists, only one of the two finds enough honest signers."""
    world = world_of(agreement_of(6, 4, 1))
    view = up_to_vectors(world)
    everybody, fewer = view.heard(), tuple(name for name in view.heard() if name != "silo4")
    colluder = branch(world, view)[0].silo("silo5")
    both = [world.silo("silo5").sign(FIRST, everybody), colluder.sign(FIRST, fewer)]
    first = [*(world.silo(n).sign(FIRST, everybody) for n in ("silo0", "silo1", "silo4")), both[0]]
    second = [*(world.silo(n).sign(FIRST, fewer) for n in ("silo2", "silo3")), both[1]]
    assert world.silo("silo0").open(FIRST, tags_for("silo0", first)).seeds.keys() == set(everybody)
    with pytest.raises(SecureError, match="3 survivors vouch"):
        world.silo("silo2").open(FIRST, tags_for("silo2", second))


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
    tags = tags_for("silo0", [world.silo(name).sign(FIRST, heard) for name in heard])
    opening = world.silos[0].open(FIRST, tags)
    assert set(opening.seeds) == set(heard)
    assert set(opening.mask_keys) == {"silo4"}
    assert world.silos[0].open(FIRST, tags) == opening
    del view
