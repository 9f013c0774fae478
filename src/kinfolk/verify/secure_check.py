"""Checks of a silo's side of secure sums: what it sends is taken apart again, and a server that cheats is played.

What `flow.py` is for programs, `silo_violations` is for a silo: its contribution must be clipped, rounded, clipped
again in integers, noised and masked, in this order and with all of its noise; it must open one secret of each silo,
against enough silos' word on one list, with keys that are new in every attempt. `replayed_differences` is the replay
check: with all randomness the same, one silo's other message changes that silo's masked vector and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.exact_samplers import Source
from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure import contribution, shamir
from kinfolk.secure.agreement import Agreement, Pins
from kinfolk.secure.masks import RING, derived, mask
from kinfolk.secure.messages import Attempt, Opening
from kinfolk.secure.one_process import rehearse
from kinfolk.secure.server import Gathering
from kinfolk.secure.silo import Pay, Silo

Make = Callable[[Agreement, str, Ed25519PrivateKey, Pins, Pay, Source], Silo]
"""Makes a silo: the class itself, or one with a planted bug."""
NAMES = tuple("abcdefgh")
SURVIVORS, COLLUDING, LENGTH = 6, 1, 40_000


@dataclass
class Tape:
    """Random bytes of a seed, which can be played again from any place."""

    seed: bytes
    used: int = 0

    def __call__(self, count: int) -> bytes:
        found = mask(hashlib.sha256(self.seed).digest(), (self.used + count) // 4 + 1).tobytes()
        self.used += count
        return found[self.used - count : self.used]


def small_world(make: Make, length: int = 16, deviation: float = 1.0) -> tuple[list[Silo], dict[str, Tape]]:
    """Eight silos, each with a tape for its randomness.

    `make`: the kind of silo. `length`: of a vector. `deviation`: of the noise, in clips.
    """
    keys = {name: Ed25519PrivateKey.from_private_bytes(name.encode() * 32) for name in NAMES}
    public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    size = deviation * GRID_STEPS
    terms = Agreement("check", NAMES, tuple(public.values()), SURVIVORS, COLLUDING, length, clip=1.0, deviation=size)
    pins, tapes = Pins(public, SURVIVORS, len(NAMES), COLLUDING, size), {name: Tape(name.encode()) for name in NAMES}
    return [make(terms, name, key, pins, lambda _: None, tapes[name]) for name, key in keys.items()], tapes


def silo_violations(make: Make) -> tuple[str, ...]:
    """What a kind of silo does that it must not; empty for one that is sound.

    `make`: the kind of silo.
    """
    return (*_contributions(make), *_openings(make), *_lists(make), *_keys(make))


def _gathered(silos: Sequence[Silo], attempt: Attempt, messages: Mapping[str, np.ndarray]) -> Gathering:
    view = Gathering(silos[0].agreement, attempt)
    for silo in silos:
        view.take(silo.begin(attempt))
    for silo in silos:
        view.take(silo.share(attempt, view.all_cards()))
    for silo in silos:
        view.take(silo.mask(attempt, view.packets_for(silo.name), messages[silo.name]))
    return view


def messages_to_try(length: int) -> dict[str, np.ndarray]:
    """Messages that a clip or a rounding in the wrong place shows up on.

    `length`: of each.
    """
    return {
        "nothing": np.zeros(length),
        "a huge one": np.full(length, 1e9),
        "one that is not a number": np.full(length, np.nan),
        "one that every rounding makes longer": np.full(length, 1 / np.sqrt(length)),
        "fractions of a step": np.full(length, 0.4 / GRID_STEPS),
    }


def _contributions(make: Make) -> list[str]:
    """Takes the masks off again: what is left must be the bounded message and the noise of the very bytes drawn."""
    found = []
    for number, (what, message) in enumerate(messages_to_try(LENGTH).items()):
        silos, tapes = small_world(make, LENGTH)
        first, attempt = silos[0], Attempt("run", number)
        view = Gathering(first.agreement, attempt)
        for silo in silos[:SURVIVORS]:
            view.take(silo.begin(attempt))
        for silo in silos[:SURVIVORS]:
            view.take(silo.share(attempt, view.all_cards()))
        before = tapes[first.name].used
        sent = np.frombuffer(first.mask(attempt, view.packets_for(first.name), message).vector, RING)
        drawn = Tape(first.name.encode(), before)
        wanted = contribution.bounded(contribution.on_grid(message, first.agreement.clip))
        noise = contribution.discrete_gaussian(first.agreement.share, LENGTH, drawn).astype(np.int64)
        left = (_unmasked(first, sent) - noise.astype(RING)).view(np.int32).astype(np.int64)
        if np.square(left).sum() > GRID_STEPS**2 or (left != wanted).any():
            found.append(f"{what}: a contribution is not the clipped, rounded and bounded message with its whole noise")
        if tapes[first.name].used != drawn.used:
            found.append(f"{what}: other noise is drawn than is accounted for")
    return found


def _unmasked(silo: Silo, sent: np.ndarray) -> np.ndarray:
    """A silo's vector without its masks, which only the silo itself can compute."""
    own, terms = silo._secrets, silo.agreement
    assert own is not None
    total = sent - mask(derived(own.seed, own.bound), terms.length)
    for name in own.shares:
        if name != silo.name:
            pair = mask(own.masked_with[name], terms.length)
            total = total - pair if terms.place(silo.name) < terms.place(name) else total + pair
    return total


def readable(view: Gathering, colluders: Sequence[Silo] = ()) -> set[str]:
    """The silos both of whose secrets can be joined from all that a server was sent and what colluders know.

    `view`: the server's. `colluders`: silos that give it all their shares.
    """
    terms = view.agreement
    seeds: dict[str, dict[int, bytes]] = {name: {} for name in view.packets}
    keys: dict[str, dict[int, bytes]] = {name: {} for name in view.packets}
    for opening in view.openings.values():
        for held, shares in ((seeds, opening.seeds), (keys, opening.mask_keys)):
            for name, share in shares.items():
                held[name][terms.place(opening.name)] = share
    for silo in colluders:
        for name, (key, seed) in (silo._secrets.shares if silo._secrets else {}).items():
            keys[name][terms.place(silo.name)], seeds[name][terms.place(silo.name)] = key, seed
    found = set()
    for name in view.packets:
        parts = [dict(sorted(held[name].items())[: terms.survivors]) for held in (seeds, keys)]
        if all(len(part) == terms.survivors for part in parts):
            seed, key = (shamir.joined(part) for part in parts)
            if seed is not None and key is not None and hashlib.sha256(seed).digest() == view.cards[name].seed_hash:
                found.add(name)
    return found


def _openings(make: Make) -> list[str]:
    """All exchanges with one silo lost before its vector: nobody's two secrets may be joined, with colluders' help."""
    silos, _ = small_world(make)
    attempt, message = Attempt("run", 0), np.zeros(16)
    view = _gathered(silos, attempt, dict.fromkeys(NAMES, message))
    del view.vectors[NAMES[-1]]
    heard = view.heard()
    found = []
    for silo in silos[:-1]:
        view.take(silo.sign(attempt, heard))
    for silo in silos[:-1]:
        opening: Opening = silo.open(attempt, view.tags_for(silo.name))
        if set(opening.seeds) & set(opening.mask_keys):
            found = ["both secrets of one silo are opened"]
        view.openings[silo.name] = opening
    seen = readable(view, silos[:COLLUDING])
    return [*found, *(["a server can read single vectors"] if seen else [])]


def _lists(make: Make) -> list[str]:
    """A server that shows two lists, or nobody's word on one, gets nothing."""
    silos, _ = small_world(make)
    attempt, message = Attempt("run", 0), np.zeros(16)
    view = _gathered(silos, attempt, dict.fromkeys(NAMES, message))
    first, everybody, fewer = silos[0], view.heard(), view.heard()[:-1]
    own = first.sign(attempt, everybody).tags
    others = {silo.name: silo.sign(attempt, fewer).tags[first.name] for silo in silos[1:-1]}
    found = []
    for why, tags in (
        ("without tags of the list", {}),
        ("with the silo's own tags", own),
        ("with tags of another list", others),
        ("with made-up tags", dict.fromkeys(everybody, bytes(32))),
    ):
        with suppress(SecureError):
            first.open(attempt, tags)
            found.append(f"shares are opened {why}")
    with suppress(SecureError):
        first.sign(attempt, fewer)
        found.append("two lists are signed for one set of keys")
    return found


def _keys(make: Make) -> list[str]:
    """Keys of masks and of packets are new in every attempt, sealing keys in every run."""
    silos, _ = small_world(make)
    first, used, sealing = silos[0], list[bytes](), set[bytes]()
    for attempt in (Attempt("run", 0), Attempt("run", 0, 1), Attempt("run", 1), Attempt("other", 0)):
        cards = [silo.begin(attempt) for silo in silos]
        first.share(attempt, cards)
        own = first._secrets
        assert own is not None
        used += [own.card.mask_key, own.card.seed_hash, *own.pairs.values()]
        sealing.add(own.card.seal_key)
    return [] if len({*used}) == len(used) and len(sealing) == 2 else ["a key is used in more than one attempt"]


def replayed_differences(make: Make) -> set[str]:
    """Two rehearsals with the same randomness, in which the first silo's messages differ: what else differs in all that
    the server was sent. Empty for a sound one.

    `make`: the kind of silo.
    """
    views = []
    for first in (np.zeros(16), np.full(16, 3.0)):
        silos, _ = small_world(make)
        messages = {name: first if name == NAMES[0] else np.full(16, 0.1) for name in NAMES}
        views.append(rehearse(silos, Attempt("run", 0), messages).view)
    one, two = views
    found = set()
    for part in ("cards", "packets", "signatures", "openings"):
        if getattr(one, part) != getattr(two, part):
            found.add(part)
    found |= {f"vector of {name}" for name in NAMES[1:] if one.vectors[name] != two.vectors[name]}
    if one.vectors[NAMES[0]] == two.vectors[NAMES[0]]:
        found.add("nothing: the message does not count")
    return found
