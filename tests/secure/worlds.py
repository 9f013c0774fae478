"""Small federations for the tests of secure sums: silos with keys, a list of who paid, and what each contributed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.secure import contribution
from kinfolk.secure.agreement import Agreement, Pins
from kinfolk.secure.messages import Attempt
from kinfolk.secure.server import Gathering
from kinfolk.secure.silo import Silo

FIRST = Attempt("run", 0)


def keys_of(silos: int) -> dict[str, Ed25519PrivateKey]:
    return {f"silo{k}": Ed25519PrivateKey.from_private_bytes(bytes([k + 1]) * 32) for k in range(silos)}


@dataclass
class World:
    """Silos, their messages, and a record of payments and contributions."""

    silos: list[Silo]
    messages: dict[str, np.ndarray]
    paid: list[tuple[str, Attempt]] = field(default_factory=list)
    contributions: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def agreement(self) -> Agreement:
        return self.silos[0].agreement

    @property
    def names(self) -> tuple[str, ...]:
        return self.agreement.names

    def silo(self, name: str) -> Silo:
        return next(silo for silo in self.silos if silo.name == name)

    def sum_of(self, names: tuple[str, ...]) -> np.ndarray:
        """What these contributed, modulo 2^32."""
        return sum((self.contributions[name] for name in names), np.zeros(self.agreement.length, np.uint32))


def agreement_of(
    silos: int = 5, survivors: int = 4, colluding: int = 1, length: int = 7, noise: float = 1.0
) -> Agreement:
    keys = {name: key.public_key().public_bytes_raw() for name, key in keys_of(silos).items()}
    return Agreement("study", tuple(keys), tuple(keys.values()), survivors, colluding, length, 1.0, noise * GRID_STEPS)


def pins_of(agreement: Agreement) -> Pins:
    known = dict(zip(agreement.names, agreement.keys, strict=True))
    return Pins(known, agreement.survivors, agreement.silos, agreement.colluding, agreement.deviation)


def world_of(agreement: Agreement, kind: type[Silo] = Silo) -> World:
    """A world of silos of this kind; `contributions` are recorded while `recorded` is entered."""
    generator, world = np.random.default_rng(5), World([], {})
    for name, key in keys_of(agreement.silos).items():

        def pay(attempt: Attempt, name: str = name) -> None:
            world.paid.append((name, attempt))

        world.silos.append(kind(agreement, name, key, pins_of(agreement), pay))
        world.messages[name] = generator.normal(size=agreement.length)
    return world


@contextmanager
def recorded(world: World) -> Iterator[None]:
    """Keeps what every silo contributed before its masks."""
    real = contribution.noisy
    of = {id(message): name for name, message in world.messages.items()}

    def noisy(message: np.ndarray, *rest: object) -> np.ndarray:
        world.contributions[of[id(message)]] = made = real(message, *rest)  # type: ignore[arg-type]
        return made

    with mock.patch.object(contribution, "noisy", noisy):
        yield


def up_to_vectors(world: World, attempt: Attempt = FIRST) -> Gathering:
    """The first three exchanges with everybody."""
    view = Gathering(world.agreement, attempt)
    for silo in world.silos:
        view.take(silo.begin(attempt))
    for silo in world.silos:
        view.take(silo.share(attempt, view.all_cards()))
    for silo in world.silos:
        view.take(silo.mask(attempt, view.packets_for(silo.name), world.messages[silo.name]))
    return view


def branch(world: World, view: Gathering) -> tuple[World, Gathering]:
    """The same state again, to go on from in another way: what no real silo can do."""
    silos = [copy.copy(silo) for silo in world.silos]
    for silo in silos:
        assert silo._secrets is not None
        silo._secrets = replace(silo._secrets)
    return replace(world, silos=silos), replace(view, vectors=dict(view.vectors), signatures={}, openings={})
