"""Noise that clients add in shares, so that nobody has to trust the aggregator: how wide a share is, and why so.

A client is protected against the aggregator together with `colluding` clients. Two lists of survivors that are both
signed by `survivors` clients share an honest signer if survivors > (clients + colluding) / 2, so only one can ever be
opened; and of those who survive at least survivors - colluding are honest, so the shares of so many must suffice.
What more of them survive add on top is the price.

>>> shares = NoiseShares(50, 40, 10)
>>> shares.honest, round(shares.excess, 2)
(30, 1.67)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kinfolk.privacy.release import PrivacyError

MOST_CLIENTS = 256
"""Every pair of clients shares a mask: time grows with the square."""
LEAST_SHARE = 1000.0
"""Grid steps: no client's share of noise is narrower, so that sums of shares are discrete Gaussians to within a factor
that differs from 1 by less than 10^-4000000 (`law_gap`)."""
LAW = "discrete_gaussian"
"""The mechanism of such noise, in costs."""


class SecureError(PrivacyError):
    """Something in a secure sum that a silo does not do, or that the server cannot use."""


@dataclass(frozen=True)
class NoiseShares:
    """Among how many clients the noise of a sum is shared, and how many must be left."""

    clients: int
    survivors: int
    """T: with fewer a sum is given up."""
    colluding: int
    """t: how many may work with the aggregator, or deviate in any way."""

    def __post_init__(self) -> None:
        clients, colluding = self.clients, self.colluding
        if not 2 <= clients <= MOST_CLIENTS:
            raise SecureError(f"clients={clients} must be at least 2 and at most {MOST_CLIENTS}: each pair has a mask")
        if not 0 <= colluding <= clients - 2:
            raise SecureError(
                f"colluding={colluding} must be at least 0 and at most {clients - 2} of {clients} clients: against all "
                "others together masks protect nobody; use aggregator='local', where each adds the whole noise"
            )
        if not least_survivors(clients, colluding) <= self.survivors <= clients:
            raise SecureError(
                f"survivors={self.survivors} must be at least {least_survivors(clients, colluding)}, more than half of "
                f"clients and colluding together, and at most {clients}: with fewer a server could open two lists"
            )

    @property
    def honest(self) -> int:
        """The fewest honest survivors: the shares of so many have all the noise that is accounted for."""
        return self.survivors - self.colluding

    @property
    def excess(self) -> float:
        """Variance of everybody's noise, as a multiple of what is accounted for."""
        return self.clients / self.honest

    def share(self, deviation: float) -> float:
        """Standard deviation of one client's noise.

        `deviation`: of what is accounted for.
        """
        return deviation / math.sqrt(self.honest)


def least_survivors(clients: int, colluding: int) -> int:
    """The fewest survivors with which no two lists can both be opened.

    `clients`: how many there are. `colluding`: how many of them work with the aggregator.

    >>> least_survivors(50, 10)
    31
    """
    return (clients + colluding) // 2 + 1


def usual(clients: int, survivors: int | None, colluding: int | None) -> NoiseShares:
    """What is meant where nobody says: a fifth may collude, and four fifths, or as many as it takes, must be left.

    `clients`: how many there are. `survivors`, `colluding`: where they are given.
    """
    t = min(clients // 5, max(clients - 2, 0)) if colluding is None else colluding
    return NoiseShares(
        clients, max(least_survivors(clients, t), 4 * clients // 5) if survivors is None else survivors, t
    )


def law_gap(share: float, count: int) -> float:
    """The decimal logarithm of tau: every probability of a sum of `count` shares is that of one discrete Gaussian of
    the same variance up to a factor exp(tau), for each number (Kairouz, Liu and Steinke, 2021).

    `share`: standard deviation of each, in grid steps. `count`: how many.

    >>> law_gap(1000.0, 100) < -4_000_000
    True
    """
    return math.log10(10 * max(count - 1, 1)) - math.pi**2 * share**2 / math.log(10)
