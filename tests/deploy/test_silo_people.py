"""A silo whose table says whose each row is."""

from __future__ import annotations

import numpy as np

from kinfolk.data.identity import Identity
from kinfolk.deploy.silo_program import prepare_silo
from tests.deploy.asking import STUDY
from tests.deploy.federations import federation_of, policy_of, rows_of, study_of


def test_a_silo_counts_people_where_its_table_names_them() -> None:
    rows, known = rows_of(federation_of(), 2), Identity("person", "patient", (np.array(list("ppppqqrst")),), 3)
    silo = prepare_silo(STUDY, policy_of(STUDY, "c"), rows, known)
    assert silo.size == 5
    assert silo.rows.x.rows.shape == (5, 3, 3)
    assert silo.account.unit == "person"
    assert silo.account.units == (5,)
    trusting = study_of(level="client", noise_multiplier=1.5)
    assert prepare_silo(trusting, policy_of(trusting, "c"), rows, known).size == 9
