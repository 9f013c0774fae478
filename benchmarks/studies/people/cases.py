"""Data in which people have several rows: made-up ones, visits of patients, writers of digits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.studies.outcomes.visits import visits
from benchmarks.studies.people.digits import boxed, standardised
from benchmarks.studies.people.encoder import encoded
from kinfolk import Federation, from_rows

SEED = 0
LONG = 4
"""Days; the median of the set."""
TEST = 0.25
"""Of people, whatever is the unit: row level is tested on the same rows."""


@dataclass(frozen=True)
class Rows:
    """Rows, and whose they are."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray
    person: np.ndarray
    outcome: str = "binary"
    classes: int = 2
    split: int = SEED
    """Decides who is for testing."""

    def test(self) -> np.ndarray:
        """Which rows are for testing: all rows of a quarter of the people."""
        people, whose = np.unique(self.person, return_inverse=True)
        chosen = np.random.default_rng(self.split).permutation(len(people)) < TEST * len(people)
        return chosen[whose]

    def to_choose_on(self) -> Rows:
        """The training rows alone, of which a quarter of the people takes the place of test people."""
        return replace(self._only(~self.test()), split=self.split + 1)

    def _only(self, keep: np.ndarray) -> Rows:
        return replace(self, x=self.x[keep], y=self.y[keep], client=self.client[keep], person=self.person[keep])

    def federation(self, rows_per_person: int | None) -> Federation:
        """With people as units, of whom so many rows count; None: with rows."""
        options = {} if rows_per_person is None else {"person_ids": self.person, "rows_per_person": rows_per_person}
        return from_rows(
            self.x, self.y, self.client, test=self.test(), outcome=self.outcome, classes=self.classes, **options
        )

    def one_each(self) -> Rows:
        """The first row of everybody to train on; test rows as they are."""
        _, first = np.unique(self.person, return_index=True)
        keep = self.test()
        keep[first] = True
        return self._only(keep)


def made_up(seed: int) -> Rows:
    """500 people with 1 to 20 rows; a person's rows have half of their variance in common, features and outcomes."""
    generator = np.random.default_rng(seed)
    count = generator.integers(1, 21, 500)
    person = np.repeat(np.arange(500), count)
    own, each = generator.normal(size=(500, 5)), generator.normal(size=(len(person), 5))
    x = np.clip((own[person] + each) / np.sqrt(2) / 3, -1, 1)
    score = 3 * x @ np.array([1.0, -0.8, 0.6, -0.4, 0.2]) + 0.7 * generator.normal(size=500)[person]
    y = (score + generator.logistic(size=len(person)) > 0).astype(np.int32)
    return Rows(x.astype(np.float32), y, np.full(len(person), "all"), person)


def long_stays() -> Rows:
    """Whether a patient stays for more than four days, by medical specialties."""
    found = visits()
    return Rows(found.x, (found.days > LONG).astype(np.int32), found.specialty, found.patient)


def comes_back() -> Rows:
    """Whether a patient comes back: those with several visits did, so that rows and people differ in the answer."""
    found = visits()
    return Rows(found.x, found.readmitted, found.specialty, found.patient)


def writers() -> Rows:
    """Digits of 293 writers, in the three collections that they come from, as 25 numbers each."""
    return _digits(lambda images: standardised(boxed(images)))


def encoded_writers() -> Rows:
    """The same digits as nine numbers each, by an encoder that was fitted to digits of other people."""
    return _digits(encoded)


def _digits(numbers: Callable[[np.ndarray], np.ndarray]) -> Rows:
    with np.load(Path(os.environ["KINFOLK_DATA"]) / "femnist.npz") as file:
        x, y, writer, source = file["x"], file["y"].astype(np.int32), file["client"], file["client_source"]
    source = source if len(source) == len(y) else source[writer]
    keep = y < 10
    return Rows(numbers(x[keep]), y[keep], source[keep].astype(str), writer[keep], "classes", 10)
