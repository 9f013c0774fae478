"""What every estimator does alike: parameters, rows from arrays and frames, training, statement, report, export."""

from __future__ import annotations

import inspect
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from kinfolk.accounting.statement import Statement, text
from kinfolk.data.tables import frames
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.encode import Encoded
from kinfolk.data.tables.frames import Table
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.privacy.release import PrivacyError
from kinfolk.serving import trained
from kinfolk.serving.export import export
from kinfolk.serving.trained import Fitted
from kinfolk.training import loop, recipes


@dataclass(frozen=True)
class Given:
    """The rows that a fit was given, encoded: features, whose they are, who the people are, and what is declared."""

    x: np.ndarray
    ids: np.ndarray
    known: np.ndarray | None
    schema: Schema


class Personalized(BaseEstimator):
    """What the classifier, the regressor and the survival estimator have in common."""

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

    def _given(self, X: Table, clients: ArrayLike | None, people: ArrayLike | None) -> Given:
        """What `fit` learns from, but for the target."""
        whose = frames.people_of(self.person if people is None else people, X)
        ids, X = self._whose(X, clients, "fit")
        x, schema = self._features(X, reset=True)
        known, schema = frames.known_by(X, schema, whose, self.rows_per_person)
        return Given(x, ids, known, schema)

    def _predicted(self, X: Table, clients: ArrayLike | None) -> tuple[np.ndarray, np.ndarray | None]:
        """What each row's client's model says of it, and chances or risks where the outcome has them."""
        check_is_fitted(self, "models_")
        ids, X = self._whose(X, clients, "predict")
        return self.models_.predict(self._features(X, reset=False)[0], ids)

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

    def _train(self, given: Given, y: np.ndarray, **declared: Any) -> None:
        """Trains as `kinfolk train` does, in a run directory, and keeps the models and the privacy statement."""
        schema = replace(given.schema, client=None, **declared)
        rows = Encoded(schema, given.x, y, given.ids, (), given.known)
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
