"""A secure sum with everybody in one process: for tests, rehearsals and benchmarks. Silos may be lost on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kinfolk.privacy.noise_shares import SecureError
from kinfolk.secure.messages import Answer, Attempt
from kinfolk.secure.server import Gathering
from kinfolk.secure.silo import Silo

EXCHANGES = ("keys", "shares", "vector", "list", "opening")


@dataclass(frozen=True)
class Lost:
    """Who does not answer any more, from which exchange on."""

    keys: Collection[str] = ()
    shares: Collection[str] = ()
    vector: Collection[str] = ()
    list: Collection[str] = ()
    opening: Collection[str] = ()

    def before(self, exchange: str) -> set[str]:
        """Everybody who is lost up to an exchange.

        `exchange`: one of `EXCHANGES`.
        """
        last = EXCHANGES.index(exchange) + 1
        return {name for each in EXCHANGES[:last] for name in getattr(self, each)}


NOBODY = Lost()


@dataclass
class Rehearsal:
    """What happened in an attempt: all that the server was sent, and why silos refused."""

    view: Gathering
    refusals: dict[str, str] = field(default_factory=dict)
    """By silo, the last reason."""

    @property
    def total(self) -> np.ndarray:
        """The survivors' sum modulo 2^32."""
        return self.view.total()


def rehearse(
    silos: Sequence[Silo], attempt: Attempt, messages: Mapping[str, np.ndarray], lost: Lost = NOBODY
) -> Rehearsal:
    """All five exchanges of one attempt, silo after silo.

    `silos`: those that are there. `attempt`: which. `messages`: every silo's numbers. `lost`: who drops out, and when.
    """
    made = Rehearsal(Gathering(silos[0].agreement, attempt))
    view = made.view

    def exchange(name: str, ask: Callable[[Silo], Answer], of: Collection[str]) -> None:
        for silo in silos:
            if silo.name in of and silo.name not in lost.before(name):
                try:
                    view.take(ask(silo))
                except SecureError as error:
                    made.refusals[silo.name] = str(error)

    names = [silo.name for silo in silos]
    exchange("keys", lambda silo: silo.begin(attempt), names)
    cards = view.all_cards()
    exchange("shares", lambda silo: silo.share(attempt, cards), view.cards)
    exchange(
        "vector", lambda silo: silo.mask(attempt, view.packets_for(silo.name), messages[silo.name]), {*view.packets}
    )
    heard = view.heard()
    exchange("list", lambda silo: silo.sign(attempt, heard), heard)
    exchange("opening", lambda silo: silo.open(attempt, view.tags_for(silo.name)), {*view.signatures})
    for silo in silos:
        silo.erase()
    return made
