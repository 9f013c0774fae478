"""Estimators with scikit-learn's conventions: `fit(X, y, clients=)`, `predict`, `predict_proba`, `score`.

Without a `random_state` a fit is a release: noise from the operating system, charged to the data set's ledger; bounds
and classes must then be declared. With one it is a simulation, can be repeated, and says so next to every epsilon.
Inheritance is scikit-learn's convention, and stays in this file.
"""

from __future__ import annotations

import inspect
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("the estimators need scikit-learn: pip install 'kinfolk[sklearn]'") from error

from numpy.typing import ArrayLike

from kinfolk.accounting.statement import Statement, text
from kinfolk.data.tables import frames
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.encode import Encoded
from kinfolk.data.tables.frames import Table
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.data.tables.values import scaled
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.privacy.release import PrivacyError
from kinfolk.serving import trained
from kinfolk.serving.export import export
from kinfolk.serving.trained import Fitted
from kinfolk.training import loop, recipes


class _Personalized(BaseEstimator):
    """What the classifier and the regressor have in common."""

    models_: Fitted
    privacy_: Statement
    n_features_in_: int

    def __init__(
        self,
        method: str = "auto",
        privacy: PrivacyLevel | None = None,
        *,
        strength: float | str | None = None,
        pull: str | None = None,
        relation: Table = None,
        rounds: int | None = None,
        step_size: float | None = None,
        batch_size: int | None = None,
        hidden: tuple[int, ...] = (),
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        target: Table = None,
        schema: Schema | str | Path | None = None,
        data: str = "data",
        ledger: str | Path | None = None,
        output: str | Path | None = None,
        random_state: int | np.random.RandomState | None = None,
        clients: str | int | None = None,
        person: str | None = None,
        rows_per_person: int | None = None,
    ) -> None:
        self.method = method
        self.privacy = privacy
        self.strength = strength
        self.pull = pull
        self.relation = relation
        self.rounds = rounds
        self.step_size = step_size
        self.batch_size = batch_size
        self.hidden = hidden
        self.bounds = bounds
        self.target = target
        self.schema = schema
        self.data = data
        self.ledger = ledger
        self.output = output
        self.random_state = random_state
        self.clients = clients
        self.person = person
        self.rows_per_person = rows_per_person

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """What differs from the defaults, in a few words."""
        known = inspect.signature(type(self)).parameters.values()
        values = [(one.name, getattr(self, one.name), one.default) for one in known]
        words = [f"{name}={_short(value)}" for name, value, usual in values if not _same(value, usual)]
        return f"{type(self).__name__}({', '.join(words)})"[:N_CHAR_MAX]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def statement(self) -> str:
        """The privacy statement in plain words."""
        check_is_fitted(self, "privacy_")
        return text(self.privacy_)

    def report(self, path: str | Path, *, with_private: bool = False) -> Path:
        """Writes the report on the fit, as `kinfolk report` does: HTML, Markdown or PDF by the file's ending."""
        check_is_fitted(self, "models_")
        if self.run_ is None:
            raise ValueError("report() reads the run directory, which was not kept: give output='runs' and fit again")
        from kinfolk.report import write_report

        return write_report([self.run_], Path(path), format=Path(path).suffix[1:], with_private=with_private)

    def save(self, folder: str | Path) -> Path:
        """Writes all clients' models: safetensors, JSON, and a script that predicts with NumPy alone."""
        check_is_fitted(self, "models_")
        return trained.save(self.models_, Path(folder))

    def export(self, folder: str | Path, client: str, *, onnx: bool = False, for_study: bool = False) -> Path:
        """Writes what one client may have: its own model and the shared one. A simulation's only for study."""
        check_is_fitted(self, "models_")
        return export(self.models_, Path(folder), client=str(client), onnx=onnx, for_study=for_study)

    def _whose(self, X: Table, clients: ArrayLike | None, what: str) -> tuple[np.ndarray, Table]:
        """Whose row each row is, and the rows without the column that says so."""
        if what == "fit":
            self.client_column_ = clients if isinstance(clients, str) else self.clients
        ids, X = frames.with_clients(clients, self.client_column_, X, what)
        return ids, frames.without(X, self.person)

    def _features(self, X: Table, reset: bool) -> tuple[np.ndarray, Schema]:
        """Encoded rows, and the columns as they are declared or, at fit, guessed."""
        if self.schema is not None or frames.holds_text(X):
            if not reset:
                schema = self.models_.schema
            elif self.schema is None:
                schema = Schema(Column("target of fit", low=-1, high=1), frames.guessed_columns(X))
            else:
                schema = self.schema if isinstance(self.schema, Schema) else schemas.load(Path(self.schema))
            self.n_features_in_ = len(schema.columns)
            return frames.from_frame(X, schema), schema
        checked = np.asarray(validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan"))
        if np.isinf(checked).any():
            raise ValueError("X holds infinity or a value too large: correct it, or leave it out as NaN")
        if reset:
            names = getattr(self, "feature_names_in_", [f"x{k}" for k in range(checked.shape[1])])
            schema = Schema(Column("target of fit", low=-1, high=1), frames.number_columns(checked, names, self.bounds))
        else:
            schema = self.models_.schema
        return frames.scaled_rows(checked, schema), schema

    def _train(self, rows: Encoded) -> None:
        """Trains as `kinfolk train` does, in a run directory, and keeps the models and the privacy statement."""
        privacy = example_level(epsilon=3.0) if self.privacy is None else self.privacy
        seed = (
            None
            if self.random_state is None
            else int(check_random_state(self.random_state).randint(2**31 - 1))
            if not isinstance(self.random_state, int)
            else self.random_state
        )
        guesses = rows.schema.unconfirmed()
        if seed is None and guesses and privacy.level.private:
            raise PrivacyError(
                f"a release needs what is declared, not guessed from X and y ({schemas.shortened(guesses, 5)}): give "
                "bounds=(low, high) and target= (the labels, or (low, high)), or schema=; or random_state=0 to simulate"
            )
        federation = frames.federation(rows, self.data)
        experiment = recipes.recommend(
            federation,
            privacy,
            seed=seed,
            method=self.method,
            rounds=self.rounds,
            step_size=self.step_size,
            batch_size=self.batch_size,
            strength=self.strength,
            hidden=self.hidden,
            relation=self.relation,
            pull=self.pull,
        )
        ledger = None if self.ledger is None else Path(self.ledger)
        with tempfile.TemporaryDirectory() as temporary:
            output = Path(temporary) if self.output is None else Path(self.output)
            run = loop.run(experiment, output, ledger=ledger, data=federation)
            self.models_ = trained.from_run(run)
            self.privacy_ = run.statement()
            self.run_ = None if self.output is None else run.path
        self.experiment_ = experiment
        self.n_iter_ = self.privacy_["rounds"]
        self.clients_ = np.array(self.models_.ids)


def _same(value: object, default: object) -> bool:
    return value is default or (
        type(value) is type(default) and isinstance(value, str | int | tuple) and value == default
    )


def _short(value: object) -> str:
    """A parameter as it could be typed, or what it is, where that is long."""
    if isinstance(value, PrivacyLevel):
        budget = f"epsilon={value.epsilon:g}" if value.epsilon is not None else ""
        return f"{value.level}_level({budget})" if value.level.private else "none()"
    if isinstance(value, Schema):
        return f"<schema of {len(value.columns)} columns>"
    text = repr(value)
    return text if len(text) <= 60 else f"<{type(value).__name__}>"


class PersonalizedClassifier(ClassifierMixin, _Personalized):
    """A classifier for every client, trained together, with a privacy guarantee.

    `bounds`: declared lowest and highest values of the features (two numbers, or two arrays); `target`: the declared
    labels; `schema`: for tables with text, a `Schema` or its file. What is not declared is guessed from the data, which
    only a simulation (`random_state=`) may do. `data` names the data set: a release charges its ledger. `strength`: of
    the pull towards what is shared, a number or "auto" (learned). `pull`: in every local "step", or once a "round";
    default: the method's own. `relation`: who is related to whom, as a mapping from client to group or as a matrix
    (groups x clients, in the order of `clients_`); it must be public.

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

        `X`: rows of features, an array or a data frame. `y`: one target per row. `people`: the person of each row, if
        `person` names no column: all rows of one at a client are protected at once.
        """
        whose = frames.people_of(self.person if people is None else people, X)
        ids, X = self._whose(X, clients, "fit")
        x, schema = self._features(X, reset=True)
        assert schema is not None
        known, schema = frames.known_by(X, schema, whose, self.rows_per_person)
        labels = frames.one_column(y, len(x))
        check_classification_targets(labels)
        declared, confirmed = self.target, self.target is not None
        if declared is None and self.schema is not None and schema.target.classes:
            declared, labels, confirmed = schema.target.classes, labels.astype(str), schema.target.confirmed
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
        self._train(Encoded(replace(schema, target=target, client=None), x, codes.astype(np.int32), ids, (), known))
        return self

    def predict_proba(self, X: Table, clients: ArrayLike | None = None) -> np.ndarray:
        """The probability of every class, by each row's client's model.

        `X`: rows of features, an array or a data frame. `clients`: the client of each row.
        """
        check_is_fitted(self, "models_")
        ids, X = self._whose(X, clients, "predict")
        x, _ = self._features(X, reset=False)
        _, chances = self.models_.predict(x, ids)
        assert chances is not None
        return chances

    def predict(self, X: Table, clients: ArrayLike | None = None) -> np.ndarray:
        """The most probable class; a client that was not there in training gets the shared model's.

        `X`: rows of features, an array or a data frame. `clients`: the client of each row.
        """
        chances = self.predict_proba(X, clients)
        return self.classes_[chances.argmax(axis=1)]

    def score(
        self, X: Table, y: Table, sample_weight: ArrayLike | None = None, clients: ArrayLike | None = None
    ) -> float:
        """The share of right labels.

        `X`: rows of features, an array or a data frame. `y`: one target per row. `sample_weight`: weights of the rows.
        `clients`: the client of each row.
        """
        return float(accuracy_score(y, self.predict(X, clients), sample_weight=sample_weight))


class PersonalizedRegressor(RegressorMixin, _Personalized):
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
        whose = frames.people_of(self.person if people is None else people, X)
        ids, X = self._whose(X, clients, "fit")
        x, schema = self._features(X, reset=True)
        assert schema is not None
        known, schema = frames.known_by(X, schema, whose, self.rows_per_person)
        raw = frames.one_column(y, len(x), numeric=True)
        bounds, confirmed = self.target, True
        if bounds is None and self.schema is not None and schema.target.kind == "number":
            bounds, confirmed = (schema.target.low, schema.target.high), schema.target.confirmed
        if bounds is None:
            low, high = float(raw.min()), float(raw.max())
            bounds, confirmed = (low, high if high > low else low + 1), False
        target = Column("target of fit", low=float(bounds[0]), high=float(bounds[1]), confirmed=confirmed)  # type: ignore[arg-type]
        y_scaled = scaled(raw, target)[0]
        self._train(Encoded(replace(schema, target=target, client=None), x, y_scaled, ids, (), known))
        return self

    def predict(self, X: Table, clients: ArrayLike | None = None) -> np.ndarray:
        """The target, by each row's client's model; a client that was not there gets the shared model's.

        `X`: rows of features, an array or a data frame. `clients`: the client of each row.
        """
        check_is_fitted(self, "models_")
        ids, X = self._whose(X, clients, "predict")
        x, _ = self._features(X, reset=False)
        return self.models_.predict(x, ids)[0].astype(np.float64)

    def score(
        self, X: Table, y: Table, sample_weight: ArrayLike | None = None, clients: ArrayLike | None = None
    ) -> float:
        """R^2.

        `X`: rows of features, an array or a data frame. `y`: one target per row. `sample_weight`: weights of the rows.
        `clients`: the client of each row.
        """
        return float(r2_score(y, self.predict(X, clients), sample_weight=sample_weight))
