"""How far mean-regularised training with displacements gets: a part that decays with the rounds, and a floor.

Theorems 3 and 5 of Hu, Wu and Smith are about increments (`theory/increments.py`, which says what is wrong with them).
What stands here is our own, with all constants, for the displacement rule, the default, when everybody takes part and
clients solve their own problem exactly: a term that falls with the number of rounds T, and one that the noise sets,
which does not grow with T, as it does for increments.

Then the shared model takes gradient steps on the envelope `F(w) = mean_k min_v loss_k(v) + s/2 |v - w|^2`: its gradient
is `s (w - mean_k v_k)`, so a round is `w <- w - (1/s) grad F(w) + N(0, sigma^2 I)`. Losses that are L-smooth and
mu-strongly convex make F `sL/(s+L)`-smooth and `s mu/(s+mu)`-strongly convex. From the descent lemma, a step of size
`1/s <= 1/smoothness` lowers F by at least `|grad F|^2 / (2s)`; noise raises it by at most `smoothness d sigma^2 / 2`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.limits import finite
from kinfolk.theory.ranges import COUNT, COUNT_OR_NONE, NOT_NEGATIVE, POSITIVE, require


@dataclass(frozen=True)
class Descent:
    """Noisy descent of the shared model on the envelope of the clients' losses."""

    strength: float
    """s."""
    smoothness: float
    """L, of every client's loss."""
    dimensions: int
    """d, the number of weights."""
    noise: float
    """sigma: standard deviation of the noise on each coordinate of the *mean* of the clients' updates."""
    convexity: float = 0.0
    """mu, of every client's loss; 0 where it is not strongly convex."""

    def __post_init__(self) -> None:
        require(POSITIVE, strength=self.strength, smoothness=self.smoothness)
        require(COUNT, dimensions=self.dimensions)
        require(NOT_NEGATIVE, noise=self.noise)
        require(finite(0, self.smoothness, "no loss is more convex than smooth"), convexity=self.convexity)

    @property
    def envelope_smoothness(self) -> float:
        """Of F: `sL / (s + L)`."""
        return self.strength * self.smoothness / (self.strength + self.smoothness)

    @property
    def contraction(self) -> float:
        """The factor of one round on the gap to the best value: `1 - mu/(s + mu)`."""
        return 1 - self.convexity / (self.strength + self.convexity)

    @property
    def lost_per_round(self) -> float:
        """How much noise can raise F in one round."""
        return self.envelope_smoothness * self.dimensions * self.noise**2 / 2

    def mean_squared_gradient(self, gap: float, rounds: int) -> float:
        """Bound on the mean over `rounds` of `E |grad F|^2`, from a start `gap` above the least value of F.

        For any smooth loss whose envelope is smooth (convex, or strength above the smoothness).
        """
        require(NOT_NEGATIVE, gap=gap)
        require(COUNT, rounds=rounds)
        return 2 * self.strength * (gap / rounds + self.lost_per_round)

    def gap_after(self, gap: float, rounds: int) -> float:
        """Bound on `E F(w) - min F` after some `rounds`, for strongly convex losses, from a start `gap` above it."""
        require(NOT_NEGATIVE, gap=gap)
        require(COUNT_OR_NONE, rounds=rounds)
        decayed = self.contraction**rounds
        return decayed * gap + (1 - decayed) * self.floor

    @property
    def floor(self) -> float:
        """Where `gap_after` ends: noise per round over the contraction."""
        if not self.convexity:
            raise ValueError("convexity=0: this bound is for strongly convex losses; use mean_squared_gradient")
        return self.lost_per_round / (1 - self.contraction)
