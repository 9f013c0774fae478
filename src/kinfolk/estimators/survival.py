"""An estimator of times until an event, with scikit-learn's conventions: `fit(X, y, clients=)`, `predict`, `score`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from kinfolk.data.tables.frames import Table
from kinfolk.data.tables.schema import Column
from kinfolk.data.target import courses
from kinfolk.estimators.personalized import Personalized
from kinfolk.metrics.survival import concordance
from kinfolk.serving.predict_numpy import risk_at


class PersonalizedSurvival(Personalized):
    """Discrete-time hazards for every client, trained together, with a privacy guarantee.

    `target`: where intervals of time end, which is public; the other parameters as for `PersonalizedClassifier`.

    `method`: a name in the registry, or `auto`, which picks one from public numbers. `privacy`: level and budget;
    default example level, epsilon 3. `strength`: how hard personal models are pulled towards the shared one; default
    from public numbers. `pull`: in every local "step", or once a "round"; default: the method's own. `relation`: which
    clients belong together, for methods that use it. `rounds`: how many; default from public numbers. `step_size`: of
    local steps; default from public numbers. `batch_size`: expected size; default from public numbers, and 0 means all
    rows. `hidden`: widths of hidden layers; none: a linear model. `bounds`: declared lowest and highest values of the
    features. `schema`: for tables with text, a `Schema` or its file. `data`: the data set's name. `ledger`: the file
    that a release charges. `output`: the folder for the run directory; None: it is not kept. `random_state`: a seed
    makes a simulation; None a release. `clients`: the column of X that says whose row it is; or 1: all rows are one
    client's. `person`: the column of X that says which person a row belongs to. `rows_per_person`: how many rows of one
    count; default 10.
    """

    def fit(
        self, X: Table, y: Table, clients: ArrayLike | None = None, people: ArrayLike | None = None
    ) -> PersonalizedSurvival:
        """Trains one model per client; `clients` says whose row each row is: one name per row, or a column of X.

        `X`: rows of features, an array or a data frame. `y`: whether the event came, and the time until then or until
        nothing more is known: a structured array with these two fields, as scikit-survival has it, or two columns in
        this order. `people`: the person of each row, if `person` names no column.
        """
        if self.target is None:
            raise ValueError("target=None: say where intervals of time end, as target=(180, 365, 730); they are public")
        edges = tuple(float(edge) for edge in np.ravel(self.target))
        given = self._given(X, clients, people)
        event, time = _columns(y, len(given.x))
        target = Column("time of fit", low=0.0, high=edges[-1])
        seen = courses(time, event, edges)
        self._train(given, seen, target=target, outcome="survival", event="event of fit", edges=edges)
        return self

    def predict_risk(self, X: Table, times: ArrayLike, clients: ArrayLike | None = None) -> np.ndarray:
        """The risk that the event comes by each of some times, one column for each; by each row's client's model.

        `X`: rows of features, an array or a data frame. `times`: above 0, at most the last edge. `clients`: the client
        of each row.
        """
        _, risks = self._predicted(X, clients)
        assert risks is not None
        edges = list(self.models_.schema.edges)
        return np.column_stack([risk_at(risks, edges, float(time)) for time in np.ravel(times)])

    def predict(self, X: Table, clients: ArrayLike | None = None) -> np.ndarray:
        """The risk that the event comes by the last edge; a client that was not there gets the shared model's.

        `X`: rows of features, an array or a data frame. `clients`: the client of each row.
        """
        check_is_fitted(self, "models_")
        return self.predict_risk(X, self.models_.schema.edges[-1], clients)[:, 0]

    def score(self, X: Table, y: Table, clients: ArrayLike | None = None) -> float:
        """Harrell's C-index. It is private: it looks at rows.

        `X`: rows of features, an array or a data frame. `y`: as for `fit`. `clients`: the client of each row.
        """
        risk = self.predict(X, clients)
        event, time = _columns(y, len(risk))
        return concordance(risk, time, event)


def _columns(y: Table, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Events and times: the two fields of a structured array, or two columns."""
    found = np.asarray(y)
    if found.dtype.names is not None and len(found.dtype.names) == 2:
        event, time = (found[name] for name in found.dtype.names)
    elif found.ndim == 2 and found.shape[1] == 2:
        event, time = found[:, 0], found[:, 1]
    else:
        raise ValueError(f"y has shape {found.shape}: give event and time, as two columns or two fields")
    event, time = np.asarray(event, float), np.asarray(time, float)
    if len(time) != rows:
        raise ValueError(f"y has {len(time)} rows and X has {rows} (inconsistent numbers of samples)")
    if not np.isin(event, (0.0, 1.0)).all():
        raise ValueError("y: the first column says whether the event came, 0 or 1, and the second the time")
    return event > 0, time
