"""Times until an event with scikit-learn's conventions."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk import PersonalizedSurvival, none

EDGES = (0.5, 1.0, 2.0)


def people(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (count, 2))
    time, lost = generator.exponential(np.exp(-2 * x[:, 0])), generator.uniform(0, 4, count)
    return x, np.column_stack([time < lost, np.minimum(time, lost)])


def test_a_fit_orders_people_by_their_risk() -> None:
    x, y = people(200)
    model = PersonalizedSurvival(
        "fedavg", none(), target=EDGES, bounds=(-1, 1), rounds=40, batch_size=0, random_state=0, clients=1
    )
    fields = np.array([tuple(row) for row in y.tolist()], [("event", bool), ("time", float)])
    model.fit(x, fields)
    assert model.score(x, y) > 0.7
    risks = model.predict_risk(x[:5], [0.2, 0.5, 2.0])
    assert (np.diff(risks, axis=1) > 0).all()
    np.testing.assert_allclose(model.predict(x[:5]), risks[:, -1])
    with pytest.raises(ValueError, match="at most 2"):
        model.predict_risk(x, [3.0])


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (np.zeros(6), "as two columns or two fields"),
        (np.zeros((5, 2)), "y has 5 rows and X has 6"),
        (np.full((6, 2), 3.0), "0 or 1"),
    ],
)
def test_targets_that_are_none_are_refused(y: np.ndarray, says: str) -> None:
    model = PersonalizedSurvival(target=EDGES, clients=1, random_state=0)
    with pytest.raises(ValueError, match=says):
        model.fit(np.zeros((6, 2)), y)
    with pytest.raises(ValueError, match="they are public"):
        PersonalizedSurvival(clients=1, random_state=0).fit(np.zeros((6, 2)), y)
