"""A silo's rows as its policy and the study divide them: those to train on, as units, and those kept for testing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import jax
import numpy as np

from kinfolk.accounting.members import people_of
from kinfolk.data.federation import DataError
from kinfolk.data.given_rows import Split
from kinfolk.data.identity import Identity, label
from kinfolk.data.people import rows_by_person
from kinfolk.deploy.policy import Policy, has_leave
from kinfolk.deploy.study import Study
from kinfolk.types import Rows


@dataclass(frozen=True)
class SiloRows:
    """One silo's rows."""

    train: Rows
    """To train on: people, where they are the units."""
    tests: Rows | None
    """Kept from training; None where the silo answers no evaluation."""
    whose: np.ndarray | None
    """The number of each test row's person, where people are the units."""
    identity: Identity | None
    """Of all units, those kept for testing too."""
    units: int
    """How many there are in all."""
    people: int
    """How many rows of a person count; 0 where rows are the units, or the silo is."""

    @property
    def size(self) -> int:
        """How many units are trained on."""
        return int(self.train.mask.shape[0])


def divided(study: Study, policy: Policy, rows: Rows, identity: Identity | None) -> SiloRows:
    """The silo's units; some of them are kept for testing where its policy has leave for the study's evaluation.

    `rows`, `identity`: of the whole table. At client level, or where no person is declared, rows are the units.
    """
    is_people = identity is not None and identity.kind == "person" and policy.privacy.level.clients_pay
    whole = people_of(identity) if is_people and identity is not None else identity
    count = len(whole.values[0]) if is_people and whole is not None else int(rows.mask.shape[0])
    train, tests = _split(study, policy, identity if is_people else None, int(rows.mask.shape[0]), count)
    own, kept = _at(rows, train), _at(rows, tests) if len(tests) else None
    if not is_people or identity is None:
        return SiloRows(own, kept, None, whole, count, 0)
    most, values = identity.rows_per_person, identity.values[0]
    names = list(map(label, values[tests].tolist()))
    whose = np.unique(names, return_inverse=True)[1] if len(tests) else None
    return SiloRows(rows_by_person(own, values[train], most), kept, whose, whole, count, most)


def _split(
    study: Study, policy: Policy, people: Identity | None, rows: int, units: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are for training and for testing: by the name of the data alone, so the same after a restart."""
    if not has_leave(policy, study):
        return np.arange(rows), np.arange(0)
    kept = study.roster.tests[study.roster.clients.index(policy.client)]
    if kept >= units:
        raise DataError(
            f"tests={kept} of {policy.client!r} in study.toml, and its table has {units} "
            f"{'people' if people else 'rows'}: keep fewer, so that some are left to train on"
        )
    seed = int.from_bytes(hashlib.sha256(label(policy.data.name).encode()).digest()[:8], "big")
    return Split(np.random.default_rng(seed), kept / units, None, people)(np.arange(rows))


def _at(rows: Rows, places: np.ndarray) -> Rows:
    return Rows(*jax.tree.map(lambda leaf: np.asarray(leaf)[places], (rows.x, rows.y, rows.mask)))
