"""The data sets that are built in: the function that loads each, and where its files come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinfolk.data.federation import Federation
from kinfolk.data.sets import celeba, cifar, femnist, har, mnist, patients, school, silos, stackoverflow, wisdm
from kinfolk.data.sets.source import Source
from kinfolk.data.sets.synthetic import synthetic_schools


@dataclass(frozen=True)
class BuiltIn:
    """A data set by name."""

    load: Callable[..., Federation]
    """Called with those of `seed`, `test_fraction`, `scaling` and `directory` that it asks for."""
    source: Source | None = None
    """None: it is made, not downloaded."""


BUILT_IN: dict[str, BuiltIn] = {
    "synthetic_schools": BuiltIn(synthetic_schools),
    "school": BuiltIn(school.school, school.SOURCE),
    "vehicle": BuiltIn(silos.vehicle, silos.VEHICLE),
    "gleam": BuiltIn(silos.gleam, silos.GLEAM),
    "rotated_mnist": BuiltIn(mnist.rotated_mnist, mnist.SOURCE),
    "cifar10": BuiltIn(cifar.cifar10, cifar.SOURCE),
    "femnist": BuiltIn(femnist.femnist, femnist.SOURCE),
    "celeba": BuiltIn(celeba.celeba, celeba.SOURCE),
    "stackoverflow": BuiltIn(stackoverflow.stackoverflow, stackoverflow.SOURCE),
    "har": BuiltIn(har.har, har.SOURCE),
    "wisdm": BuiltIn(wisdm.wisdm, wisdm.SOURCE),
    "heart_disease": BuiltIn(patients.heart_disease, patients.HEART),
    "tcga_brca": BuiltIn(patients.tcga_brca, patients.BRCA),
    "parkinsons": BuiltIn(patients.parkinsons, patients.PARKINSONS),
}
