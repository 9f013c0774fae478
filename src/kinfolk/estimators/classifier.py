"""A classifier with scikit-learn's conventions: `fit(X, y, clients=)`, `predict`, `predict_proba`, `score`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets

from kinfolk.data.tables import frames
from kinfolk.data.tables.frames import Table
from kinfolk.data.tables.schema import Column
from kinfolk.estimators.personalized import Given, Personalized


class PersonalizedClassifier(ClassifierMixin, Personalized):
    """A classifier for every client, trained together, with a privacy guarantee.

    `bounds`: declared lowest and highest values of the features (two numbers, or two arrays); `target`: the declared
    labels, or the names of several; `schema`: for tables with text, a `Schema` or its file. What is not declared is
    guessed from the data, which only a simulation (`random_state=`) may do. `data` names the data set: a release
    charges its ledger. `strength`: of the pull towards what is shared, a number or "auto" (learned). `pull`: in every
    local "step", or once a "round"; default: the method's own. `relation`: who is related to whom, as a mapping from
    client to group or as a matrix (groups x clients, in the order of `clients_`); it must be public.

    `method`: a name in the registry, or `auto`, which picks one from public numbers. `privacy`: level and budget;
    default example level, epsilon 3. `rounds`: how many; default from public numbers. `step_size`: of local steps;
    default from public numbers. `batch_size`: expected size; default from public numbers, and 0 means all rows.
    `hidden`: widths of hidden layers; none: a linear model. `ledger`: the file that a release charges. `output`: the
    folder for the run directory; None: it is not kept. `clients`: the column of X that says whose row it is, for `fit`,
    `predict` and `score` without `clients`; or 1: all rows are one client's, as scikit-learn's own estimators have it.
    `person`: the column of X that says which person a row belongs to: a person with all rows is then protected at once.
    `rows_per_person`: how many rows of one count; default 10.
    """

    def fit(
        self, X: Table, y: Table, clients: ArrayLike | None = None, people: ArrayLike | None = None
    ) -> PersonalizedClassifier:
        """Trains one model per client; `clients` says whose row each row is: one name per row, or a column of X.

        `X`: rows of features, an array or a data frame. `y`: one target per row; or, for several labels of each row, a
        column of 0 and 1 for each, of which any number may be 1. `people`: the person of each row, if `person` names no
        column: all rows of one at a client are protected at once.
        """
        given = self._given(X, clients, people)
        shape = np.asarray(y).shape
        if len(shape) == 2 and shape[1] > 1:
            return self._fit_labels(given, y)
        labels = frames.one_column(y, len(given.x))
        check_classification_targets(labels)
        declared, confirmed = self.target, self.target is not None
        if declared is None and self.schema is not None and given.schema.target.classes:
            written = given.schema.target
            declared, labels, confirmed = written.classes, labels.astype(str), written.confirmed
        self.classes_ = np.unique(labels) if declared is None else np.asarray(declared)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds one class only ({self.classes_[0]!r}): a classifier needs two; declare target=[...]"
            )
        order = np.argsort(self.classes_)
        found = np.searchsorted(self.classes_, labels, sorter=order).clip(max=len(order) - 1)
        codes = order[found]
        wrong = np.flatnonzero(self.classes_[codes] != labels)
        if len(wrong):
            raise ValueError(f"y[{wrong[0]}]={labels[wrong[0]]!r} is not one of target={self.classes_.tolist()}")
        values = tuple(str(label) for label in self.classes_)
        target = Column("target of fit", "category", values=values, confirmed=confirmed)
        self._train(given, codes.astype(np.int32), target=target)
        return self

    def _fit_labels(self, given: Given, y: Table) -> PersonalizedClassifier:
        """Trains models with an output for each of several labels."""
        labels, declared, confirmed = _indicators(y, len(given.x)), self.target, self.target is not None
        if declared is None and self.schema is not None and given.schema.labels:
            declared, confirmed = given.schema.labels, given.schema.target.confirmed
        if declared is None:  # which labels there are may be a guess from the rows
            declared = getattr(y, "columns", [f"label {k}" for k in range(labels.shape[1])])
        names = tuple(map(str, declared))
        if len(names) != labels.shape[1]:
            raise ValueError(f"target names {len(names)} labels, and y has {labels.shape[1]} columns: name each once")
        self.classes_ = np.arange(len(names))
        target = Column("labels of fit", "yes_no", confirmed=confirmed)
        self._train(given, labels, target=target, outcome="labels", labels=names)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def predict_proba(self, X: Table, clients: ArrayLike | None = None) -> np.ndarray:
        """The probability of every class, or of every one of several labels, by each row's client's model.

        `X`: rows of features, an array or a data frame. `clients`: the client of each row.
        """
        _, chances = self._predicted(X, clients)
        assert chances is not None
        return chances

    def predict(self, X: Table, clients: ArrayLike | None = None) -> np.ndarray:
        """The most probable class; of several labels, 1 for those that are more likely than not. A client that was not
        there in training gets the shared model's.

        `X`: rows of features, an array or a data frame. `clients`: the client of each row.
        """
        chances = self.predict_proba(X, clients)
        if self.models_.schema.labels:
            return (chances > 0.5).astype(int)
        return self.classes_[chances.argmax(axis=1)]

    def score(
        self, X: Table, y: Table, sample_weight: ArrayLike | None = None, clients: ArrayLike | None = None
    ) -> float:
        """The share of right labels; of rows whose labels are all right, where there are several.

        `X`: rows of features, an array or a data frame. `y`: as for `fit`. `sample_weight`: weights of the rows.
        `clients`: the client of each row.
        """
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))


def _indicators(y: Table, rows: int) -> np.ndarray:
    """Several labels of each row, 1 where it has one, as scikit-learn's multilabel indicators."""
    found = np.asarray(y)
    if len(found) != rows:
        raise ValueError(f"y has {len(found)} rows and X has {rows} (inconsistent numbers of samples)")
    if found.dtype.kind not in "biuf" or not np.isin(found, (0, 1)).all():
        raise ValueError(
            f"y has {found.shape[1]} columns, and holds something else than 0 and 1: give a column of 0 and 1 for each "
            "of several labels, or one column with each row's class"
        )
    return found.astype(np.int32)
