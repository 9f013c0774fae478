"""A regression with scikit-learn's conventions: `fit(X, y, clients=)`, `predict`, `score`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from kinfolk.data.tables import frames
from kinfolk.data.tables.frames import Table
from kinfolk.data.tables.schema import Column
from kinfolk.data.tables.values import scaled
from kinfolk.estimators.personalized import Personalized


class PersonalizedRegressor(RegressorMixin, Personalized):
    """A linear regression for every client, trained together, with a privacy guarantee.

    `target`: the declared lowest and highest value of the target; the other parameters as for `PersonalizedClassifier`.

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
    ) -> PersonalizedRegressor:
        """Trains one model per client; `clients` says whose row each row is: one name per row, or a column of X.

        `X`: rows of features, an array or a data frame. `y`: one target per row. `people`: the person of each row, if
        `person` names no column: all rows of one at a client are protected at once.
        """
        given = self._given(X, clients, people)
        raw = frames.one_column(y, len(given.x), numeric=True)
        bounds, confirmed = self.target, True
        if bounds is None and self.schema is not None and given.schema.target.kind == "number":
            written = given.schema.target
            bounds, confirmed = (written.low, written.high), written.confirmed
        if bounds is None:
            low, high = float(raw.min()), float(raw.max())
            bounds, confirmed = (low, high if high > low else low + 1), False
        target = Column("target of fit", low=float(bounds[0]), high=float(bounds[1]), confirmed=confirmed)  # type: ignore[arg-type]
        self._train(given, scaled(raw, target)[0], target=target)
        return self

    def predict(self, X: Table, clients: ArrayLike | None = None) -> np.ndarray:
        """The target, by each row's client's model; a client that was not there gets the shared model's.

        `X`: rows of features, an array or a data frame. `clients`: the client of each row.
        """
        return self._predicted(X, clients)[0].astype(np.float64)

    def score(
        self, X: Table, y: Table, sample_weight: ArrayLike | None = None, clients: ArrayLike | None = None
    ) -> float:
        """R^2.

        `X`: rows of features, an array or a data frame. `y`: one target per row. `sample_weight`: weights of the rows.
        `clients`: the client of each row.
        """
        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))
