"""How algorithm 1 of Hu, Wu and Smith converges: theorems 3 and 5, corollaries 4 and 6 (of the longer text).

In the journal's version theorems 3 and 5 and corollary 4 are informal, 6 and 7 are the theorems' formal statements with
E local steps, and corollary 8 is corollary 6. Client k's loss is `l_k`, L-smooth (and mu-strongly convex); its
objective is `f_k(w_k; w) = l_k(w_k) + s/2 |w_k - w|^2`. Clients take a step on it, send the increment, and the shared
model w moves by the mean of the increments and noise of standard deviation sigma on each coordinate.

What is wrong as printed:

* **The bounds hold for anything.** They end in a term B, the largest of all the clients' objectives in any round. Where
  losses are not negative, smoothness alone gives as much as theorem 3 for every sequence of models, trained or not
  (`any_gradients`), if `s / p^2 <= (L + s) / 2`, which is so wherever the theorem's own step is not too large
  (`Printed.empty`); as much as the journal's theorem 6 always, for one local step
  (`Printed.journal_mean_squared_gradient`). And `gap <= m B` is in theorem 5's right-hand side already, with noise and
  without (`Printed.gap_after`).
* **The journal's theorem 6 for E steps a round** counts B at the communications only, and is not empty: models at an
  optimum there and far away in between pass it. With everybody it holds with 2 for its O: a step lowers an objective by
  at least `step/2 |gradient|^2`, no communication leaves one above B, and what noise does is in B. With cohorts it is
  wrong for many steps, whatever is in O: who is not drawn keeps its gradient for all of them, while the bound falls as
  1/E.
* **The journal's informal theorem 3** (equations 9 and 11) has s for the L + s of its theorem 6: with a weak pull it
  promises small gradients without training (`Printed.journal_informal_squared_gradient`).
* **The noise's part** of theorem 5 does not grow with the rounds, while noise that is never taken back adds up: only
  through B, which grows with it, is the bound above what a run shows. That of the journal's theorem 6 (equation 29) has
  a factor 1/m that neither its informal equation 9 nor the longer text's proof (69) has; with it equation 31 would have
  another 1/m.
* **Theorem 2's noise put in** (equations 10, 13 and the journal's 31, with T of the order of `m / (s d gamma^2)`): B
  stays as it is, so what was said of it holds for them too; and that noise is theorem 2's, for `epsilon < c1 p^2 T`
  only, so T may not be chosen small.
* **The step sizes.** Theorem 3's is negative where `L + s < s / p^2`, and above 2 / (L + s), where a client's own steps
  grow, for larger p up to `(1 + sqrt(1 + 16 s / (L + s))) / 4`. The journal has the sign mended; its step is too large
  only for L > 15 s, and p between `(1 -+ sqrt(1 - 16 s / (L + s))) / 4`. Theorem 5's condition asks for c above 2: with
  everybody taking part every step size that it allows is negative or makes models grow, for quadratic losses too
  (`Printed.allowed`). The sign was lost between its equations 95 and 96, and the second moment of a coin is p, not p^2,
  from equation 32 on.
* **`L - 2`** in theorem 5 is the move of the shared model, h(t) of equation 94, put into the rate: `m s h^2 = s eta^2
  sum |gradient|^2`, taken to be `2 s eta^2 (mu + s) gap`. Strong convexity says that it is at least that, where at most
  is needed (smoothness: 2 (L + s) for 2 (mu + s)). The journal's `L p^2 + s p^2 - 2 s` has it whole; in the longer text
  s and a p^2 are lost on the way to equation 99, which leaves curvature minus a pure number.
* **Clipping.** Both assume gamma above every gradient, so that nothing is clipped; what is clipped is the increment,
  step size times gradient: for a step size above 1 that is not enough, below it more than is needed.
* **Strong convexity.** All models together are mu-strongly convex, not mu + s: where clients agree the pull does
  nothing.
* **Not only to a neighbourhood.** With everybody taking part and without noise, w is the mean of all models, and the
  steps are plain gradient descent on the whole objective: it is reached (`Increments`). That the objective's least
  value is not 0 is no reason against it.
* **With cohorts** increments add up to 1/p times the mean, and the rule minimises something else, or nothing
  (`settles`).

`Increments` has the same two statements with all constants, for everybody in every round and one local step, without
clipping. From the descent lemma with a gradient that is off by `s` times the noise collected so far, a random walk: a
round lowers the objective by at least `step/2 |gradient|^2` and noise raises it by at most `step/2 s^2 t d sigma^2` per
client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kinfolk.limits import Limit, finite
from kinfolk.theory.ranges import COUNT, COUNT_OR_NONE, FINITE, NOT_NEGATIVE, POSITIVE, RATE, require, require_each


@dataclass(frozen=True)
class Increments:
    """Algorithm 1 with everybody in every round: gradient descent on all models together, with noise that adds up."""

    strength: float
    """s."""
    smoothness: float
    """L, of every client's loss."""
    dimensions: int
    """d, the number of weights."""
    noise: float = 0.0
    """sigma: standard deviation of the noise on each coordinate of the *mean* of the clients' updates."""
    convexity: float = 0.0
    """mu, of every client's loss; 0 where it is not strongly convex."""

    def __post_init__(self) -> None:
        require(NOT_NEGATIVE, strength=self.strength, noise=self.noise)
        require(POSITIVE, smoothness=self.smoothness)
        require(COUNT, dimensions=self.dimensions)
        require(_up_to(self.smoothness), convexity=self.convexity)

    @property
    def step(self) -> float:
        """The step size that both bounds are for."""
        return 1 / (self.smoothness + self.strength)

    def mean_squared_gradient(self, gap: float, rounds: int) -> float:
        """Bound on the mean over clients and rounds of `E |gradient|^2`, as theorem 3 and corollary 4 should say.

        The gradient of the whole objective, at all models and their true mean: not at the noisy shared model.

        `gap`: the mean objective at the start, above its least value. `rounds`: T.
        """
        require(NOT_NEGATIVE, gap=gap)
        require(COUNT, rounds=rounds)
        return 2 * gap / (self.step * rounds) + self.strength**2 * self.dimensions * self.noise**2 * (rounds - 1) / 2

    def gap_after(self, gap: float, rounds: int) -> float:
        """Bound on the mean objective above its least value after T rounds, as theorem 5 and corollary 6 should say.

        `gap`: that at the start. `rounds`: T.
        """
        require(NOT_NEGATIVE, gap=gap)
        require(COUNT_OR_NONE, rounds=rounds)
        if not self.convexity:
            raise ValueError("convexity=0: this bound is for strongly convex losses; use mean_squared_gradient")
        kept = 1 - self.step * self.convexity
        walk = (rounds * (1 - kept) - (1 - kept**rounds)) / (1 - kept) ** 2
        return kept**rounds * gap + self.step * self.strength**2 * self.dimensions * self.noise**2 / 2 * walk


@dataclass(frozen=True)
class Printed:
    """What theorems 3 and 5 and corollaries 4 and 6 say, word for word, and the journal's step sizes."""

    strength: float
    """The papers' lambda."""
    smoothness: float
    """L."""
    rate: float = 1.0
    """p = q/m."""
    convexity: float = 0.0
    """mu."""
    dimensions: int = 1
    """d."""
    noise: float = 0.0
    """sigma: standard deviation of the noise on each coordinate of the mean of the clients' updates."""

    def __post_init__(self) -> None:
        require(NOT_NEGATIVE, strength=self.strength, noise=self.noise)
        require(POSITIVE, smoothness=self.smoothness)
        require(RATE, rate=self.rate)
        require(COUNT, dimensions=self.dimensions)
        require(_up_to(self.smoothness), convexity=self.convexity)

    def first_step(self, journal: bool = False) -> float:
        """Theorem 3's step size, `1 / (p L + (p - 1/p) s)`; with `journal`, theorem 6's, which has + 1/p."""
        other = 1 / self.rate if journal else -1 / self.rate
        return self._over(1.0, self.rate * self.smoothness + (self.rate + other) * self.strength)

    def mean_squared_gradient(self, gap: float, largest: Sequence[float], *, factor: float) -> float:
        """Theorem 3 (equation 8): `4 (L + s - s/p^2) gap / T + O (L + s + s/p^2) mean(B_1 ... B_T)`, and noise's part.

        That is `O (L d s + d s^2 + d s^2 / p^2) sigma^2`; without it this is corollary 4.

        `gap`: mean objective at the start above its least, each client's over its own model and the shared one.
        `largest`: B_1, B_2, ..., B_T. `factor`: for O.
        """
        require(NOT_NEGATIVE, gap=gap)
        require_each(NOT_NEGATIVE, largest=largest)
        require(POSITIVE, factor=factor)
        rounds, apart = len(largest), self.strength / self.rate**2
        noise = self.strength * self.dimensions * self.noise**2 * (self.smoothness + self.strength + apart)
        start = 4 * (self.smoothness + self.strength - apart) * gap / rounds
        return start + factor * ((self.smoothness + self.strength + apart) * math.fsum(largest) / rounds + noise)

    def journal_mean_squared_gradient(
        self, gap: float, largest: Sequence[float], *, steps: int, clients: int, factor: float
    ) -> float:
        """The journal's theorem 6 (equation 29), with E local `steps` a round: on the mean over clients and all steps.

        `(4 (L + s + s/p^2) + 2 s / (E (L p^2 + s p^2 + 2 s))) gap / T + O (L + s + s/p^2) (B_E + B_2E + ... + B_T) / T`
        and noise's part, `O (L d s + d s^2 + d s^2 / p^2) sigma^2 / (m E)` as printed: there is no m in the informal
        equation 9, in the longer text's proof, or in what gives equation 31.

        `gap`: as in `mean_squared_gradient`. `largest`: B at every communication, so T is E times as many. `steps`: E.
        `clients`: m. `factor`: for O.
        """
        require(NOT_NEGATIVE, gap=gap)
        require_each(NOT_NEGATIVE, largest=largest)
        require(COUNT, steps=steps, clients=clients)
        require(POSITIVE, factor=factor)
        squared, rounds = self.rate**2, steps * len(largest)
        together = self.smoothness + self.strength + self.strength / squared
        added = 2 * self.strength / (steps * (squared * (self.smoothness + self.strength) + 2 * self.strength))
        noise = self.strength * self.dimensions * self.noise**2 * together / (clients * steps)
        return (4 * together + added) * gap / rounds + factor * (together * math.fsum(largest) / rounds + noise)

    def journal_informal_squared_gradient(self, rounds: int, *, steps: int, largest: float, factor: float) -> float:
        """The journal's informal theorem 3 (equation 9): `O (s / T) + O (s B / E) + O (d s sigma^2 / E)`.

        Without noise its corollary 4 (equation 11). L, p and the gap at the start are in its O; s is not, so that a
        weak pull is to make gradients small by itself. They are those of training alone then: theorem 6 has L + s.

        `rounds`: T, all local steps counted. `steps`: E. `largest`: B, over all of them. `factor`: for O.
        """
        require(COUNT, rounds=rounds, steps=steps)
        require(NOT_NEGATIVE, largest=largest)
        require(POSITIVE, factor=factor)
        return factor * self.strength * (1 / rounds + (largest + self.dimensions * self.noise**2) / steps)

    @property
    def empty(self) -> bool:
        """Whether theorem 3, with 2 or more for its O, is true of any models: where `s / p^2 <= (L + s) / 2`."""
        return 2 * self.strength <= self.rate**2 * (self.smoothness + self.strength)

    def second_step(self, constant: float, journal: bool = False) -> float:
        """Theorem 5's, `c / ((L - 2) / p + s p)`, c its `constant`; with `journal`, theorem 7's.

        That is `c p / (L p^2 + s p^2 - 2 s)`.
        """
        require(FINITE, constant=constant)
        if journal:
            below = (self.smoothness + self.strength) * self.rate**2 - 2 * self.strength
            return self._over(constant * self.rate, below)
        return self._over(constant, (self.smoothness - 2) / self.rate + self.strength * self.rate)

    def allowed(self, constant: float, journal: bool = False) -> bool:
        """Whether theorem 5's condition on its `constant` holds: the rate it names lies between 0 and 1.

        `journal`: theorem 7's, between 1/2 and 1.
        """
        share = self._share(constant, journal)
        return 0.5 <= share <= 1 if journal else 0 <= share <= 1

    def stable(self, step: float) -> bool:
        """Whether a client comes nearer with this `step` for every loss that is allowed: 0 < step < 2 / (L + s)."""
        require(FINITE, step=step)
        return 0 < step < 2 / (self.smoothness + self.strength)

    def gap_after(self, gap: float, rounds: int, *, constant: float, clients: int, largest: float) -> float:
        """Theorem 5 (equation 12): `r^T (gap - m C / (1 - r)) + m C / (1 - r)`, r the rate of one round.

        C is `s d sigma^2 + 2 s sqrt(d) sigma sqrt(2 B / s) + B`: without noise B, which is corollary 6. Never below `m
        B` from the first round on, and no gap of losses that are not negative is larger than that.

        `gap`: the sum over clients at the start. `rounds`: T. `constant`: c. `clients`: m. `largest`: B.
        """
        require(NOT_NEGATIVE, gap=gap, largest=largest)
        require(COUNT_OR_NONE, rounds=rounds)
        require(COUNT, clients=clients)
        share = self._share(constant)
        if not 0 < share <= 1:
            raise ValueError(
                f"constant={constant} makes eta p (c - 2) (mu + lambda) = {share:.3g}, which must be above 0 and at "
                "most 1: choose one that is `allowed`, and not 2"
            )
        spread = self.strength * self.dimensions * self.noise**2
        crossed = 2 * self.noise * math.sqrt(2 * self.strength * self.dimensions * largest)
        floor = clients * (spread + crossed + largest) / share
        return (1 - share) ** rounds * (gap - floor) + floor

    @staticmethod
    def journal_gap_after(gap: float, rounds: int, *, steps: int, largest: float) -> float:
        """The journal's corollary 8: `2^-T (gap - B) + B / (1 - 2^-E)`, on the mean over clients.

        Never below B either, from the first communication on. `journal_noisy_gap_after` has noise too.

        `gap`: the mean over clients at the start. `rounds`: T, all local steps counted, so whole rounds. `steps`: E, of
        one round. `largest`: B.
        """
        require(NOT_NEGATIVE, gap=gap, largest=largest)
        require(COUNT_OR_NONE, rounds=rounds)
        require(COUNT, steps=steps)
        if rounds % steps:
            raise ValueError(
                f"rounds={rounds} counts local steps, of whole rounds: it must be a multiple of steps={steps}"
            )
        return 2.0**-rounds * (gap - largest) + largest / (1 - 2.0**-steps)

    def journal_noisy_gap_after(self, gap: float, rounds: int, *, steps: int, largest: float, factor: float) -> float:
        """The journal's informal theorem 5 (equation 12): `O (2^-T gap + 2^E / (2^E - 1) (B + s d sigma^2))`.

        On the mean over clients; its formal statement is theorem 7, whose display our text lacks. Printed is
        `1 / (2^T m)`, with all clients' gaps together in O: 1/m of that is the mean's. With 1 or more for its O never
        below B at a communication.

        `gap`, `rounds`, `steps`, `largest`: as in `journal_gap_after`. `factor`: for O.
        """
        require(POSITIVE, factor=factor)
        quiet = self.journal_gap_after(gap, rounds, steps=steps, largest=largest) + 2.0**-rounds * largest
        return factor * (quiet + self.strength * self.dimensions * self.noise**2 / (1 - 2.0**-steps))

    def _over(self, above: float, below: float) -> float:
        if not below:
            raise ValueError(
                f"strength={self.strength}, smoothness={self.smoothness}, rate={self.rate}: the theorem divides by 0 "
                "to name a step here: choose another rate"
            )
        return above / below

    def _share(self, constant: float, journal: bool = False) -> float:
        step = self.second_step(constant, journal)
        return step * self.rate * (constant - 2) * (self.convexity + self.strength)


def any_gradients(smoothness: float, strength: float, gap: float, largest: Sequence[float]) -> float:
    """Bound on the mean over clients and rounds of `|gradient|^2` of any sequence of models whatever.

    A function that is (L + s)-smooth has `|gradient|^2 <= 2 (L + s) (value - least)`, and losses are not negative. So
    theorem 3's right-hand side, whose second term is the mean of B_1, ..., B_T times L + s and a constant, holds
    without any training where its first is not smaller than this bound's (`Printed.empty`).

    `smoothness`: L. `strength`: s. `gap`: mean objective at the start above its least. `largest`: B_1, B_2, ..., B_T.
    """
    require(POSITIVE, smoothness=smoothness)
    require(NOT_NEGATIVE, strength=strength, gap=gap)
    require_each(NOT_NEGATIVE, largest=largest)
    return 2 * (smoothness + strength) * (gap + math.fsum(largest)) / len(largest)


def settles(curvature: float, strength: float, rate: float) -> bool:
    """Whether increments of cohorts settle on average, for quadratic losses: `curvature > s (1/p - 1)`.

    Increments of the cohorts, divided by q, add up to 1/p times how far the mean of all models moved. So the shared
    model runs ahead of the mean, and the pull drives models on where it is stronger than the losses. Dividing by m, or
    sending displacements, mends it.

    `curvature`: of every client's loss. `strength`: s. `rate`: p.
    """
    require(NOT_NEGATIVE, curvature=curvature, strength=strength)
    require(RATE, rate=rate)
    return curvature > strength * (1 / rate - 1)


def _up_to(smoothness: float) -> Limit:
    return finite(0, smoothness, "no loss is more convex than smooth")
