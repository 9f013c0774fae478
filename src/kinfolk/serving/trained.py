"""Trained models in plain arrays: one per client and, where the method has one, a shared model for everybody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from kinfolk.data.federation import DataError
from kinfolk.data.tables import schema as schemas
from kinfolk.data.tables.schema import Schema, nearest
from kinfolk.serving import predict_numpy

if TYPE_CHECKING:
    from kinfolk.accounting.statement import Statement
    from kinfolk.training.run_directory import Run
    from kinfolk.types import Model, Params

VERSION = 1
ABOUT = "model.json"
"""What exported models are, beside the numbers."""
Layers = tuple[tuple[np.ndarray, np.ndarray], ...]
"""Weights and biases, layer by layer; of all clients with a leading client axis."""


class ExportError(ValueError):
    """Models that must not, or cannot, leave in this form; with the remedy."""


@dataclass(frozen=True)
class Fitted:
    """What is needed to predict, and what may be said about it."""

    schema: Schema
    ids: tuple[str, ...]
    layers: Layers
    shared: Layers | None
    privacy: Statement
    """The privacy statement of the run."""

    def predict(self, x: np.ndarray, clients: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Predictions, in the target's own units or labels, and the probability of each label (none for numbers), or
        the risk that the event comes by each edge."""
        return predict_numpy.outcome(self.schema.task, target_facts(self.schema), self.outputs(x, clients))

    def outputs(self, x: np.ndarray, clients: Sequence[str] | np.ndarray) -> np.ndarray:
        """The last layer's output for encoded rows, each by its client's model, a newcomer's by the shared one."""
        names, place = np.unique(np.asarray(clients, str), return_inverse=True)
        known = {name: k for k, name in enumerate(self.ids)}
        x = np.asarray(x, np.float64)
        out = np.zeros((len(x), self.layers[-1][1].shape[-1]))
        order = np.argsort(place, kind="stable")
        edges = np.searchsorted(place[order], np.arange(len(names) + 1))
        for number, name in enumerate(names.tolist()):
            own = order[edges[number] : edges[number + 1]]
            out[own] = predict_numpy.forward(self.model_of(known.get(name), name), x[own])
        return out

    def model_of(self, place: int | None, name: str) -> Layers:
        if place is not None:
            return tuple((weights[place], bias[place]) for weights, bias in self.layers)
        if self.shared is None:
            raise DataError(
                f"client {name!r} was not there in training, and this method has no shared model for newcomers (fedavg "
                f"and mean_regularized have one); {nearest(name, self.ids)}"
            )
        return self.shared


def from_run(run: Run) -> Fitted:
    """The models that a run on tables left behind."""
    import jax
    import jax.numpy as jnp

    from kinfolk.training import run_directory, run_files
    from kinfolk.training.build import OWN, build_algorithm, build_model, shared_model

    text = run.schema()
    if text is None:
        raise DataError(f"{run.path} was not trained on tables: it has no schema.toml to read new rows with")
    if not run.done():
        raise DataError(f"{run.path} is not finished: kinfolk train --resume {run.path}")
    try:
        schema = schemas.from_toml(text)
    except ValueError as error:
        raise run_files.damaged(run.schema_path or run.path, error) from None
    experiment = run.experiment()
    level, phase = experiment.privacy.level, experiment.phases[-1]
    if experiment.model.name == OWN:
        raise ExportError(f"{run.path} trained a model of one's own, whose code it has not: read its models.npz")
    shape, classes = (len(schema.feature_names()),), len(schema.classes)
    model = build_model(experiment.model, shape, schema.task, classes)
    folders = [folder for folder in (run.public, run.private) if (folder / "models.npz").exists()]
    models = (folders or [run.private])[0] / "models.npz"
    names = run_files.read_arrays(models).get("ids")
    if names is None or names.ndim != 1 or names.dtype.kind != "U":
        raise run_files.damaged(models, "it does not say whose models these are")
    ids = tuple(names.tolist())
    algorithm = build_algorithm(phase, level, ids)
    params = jax.eval_shape(model.init, jax.random.key(0))
    shared_like = jax.eval_shape(lambda: algorithm.init(model.init(jax.random.key(0)), len(ids)))
    public = run.public if (run.public / "shared.npz").exists() else run.private
    shared, own = (
        jax.tree.map(jnp.asarray, run_directory.read_tree(path, like)[0])
        for path, like in ((public / "shared.npz", shared_like), (models, params))
    )
    if any(leaf.shape[0] != len(ids) for leaf in jax.tree.leaves(own)):
        raise run_files.damaged(models, f"it names {len(ids)} clients and has models of others")
    common = shared_model(phase.method, model, shared)
    others = None if common is None else dense_layers(model, common)
    return Fitted(schema, ids, dense_layers(model, own), others, run.statement())


def dense_layers(model: Model, params: Params) -> Layers:
    """The weights of a model of dense layers with rectifiers between them; biases of intervals join the last layer."""
    kinds = [type(layer).__name__ for layer in model.layers]
    if not kinds or set(kinds) - {"Dense", "Relu", "Baseline"}:
        raise ExportError(f"a model of layers {kinds} cannot be taken out: only dense layers can")
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for own in params:
        if "weights" in own:
            found.append((np.asarray(own["weights"]), np.asarray(own["bias"])))
        elif own:
            (weights, bias), each = found[-1], np.asarray(own["bias"])
            found[-1] = np.repeat(weights, each.shape[-1], axis=-1), bias + each
    return tuple(found)


def target_facts(schema: Schema) -> dict[str, Any]:
    """What turns a model's output into an answer."""
    column = schema.target
    facts = {"name": column.name, "low": column.low, "high": column.high, "classes": list(schema.classes)}
    return {**facts, "edges": list(schema.edges)} if schema.edges else facts


def for_client(fitted: Fitted, client: str) -> Fitted:
    """What a client may have: its own model and the shared one."""
    if client not in fitted.ids:
        raise DataError(f"client {client!r} has no model of its own; {nearest(client, fitted.ids)}")
    place = fitted.ids.index(client)
    layers = tuple((weights[place : place + 1], bias[place : place + 1]) for weights, bias in fitted.layers)
    return replace(fitted, ids=(client,), layers=layers)


def notice(fitted: Fitted) -> str:
    """What has to be known before models are passed on; empty where they may go anywhere."""
    about = fitted.privacy
    said = []
    if about["simulated"] and about["level"] != "none":
        said.append("SIMULATED: the noise can be repeated from a seed, so this is for study only.")
    if about["not_private"]:
        said.append("NOT PRIVATE: " + "; ".join(about["not_private"]) + ".")
    if about["level"] == "client" and fitted.ids:
        owner = f"client {fitted.ids[0]!r}" if len(fitted.ids) == 1 else "the aggregator"
        said.append(
            f"FOR {owner} ONLY: at client level personal models are not protected, and neither are predictions made "
            "with them for others. The shared model may go to anybody."
        )
    return " ".join(said)


def save(fitted: Fitted, folder: Path) -> Path:
    """Writes model.safetensors, model.json and predict.py, which needs NumPy alone."""
    from kinfolk.training import run_directory

    with run_directory.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    arrays = {f"layers.{n}.{key}": value for n, pair in enumerate(fitted.layers) for key, value in _named(pair)}
    for n, pair in enumerate(fitted.shared or ()):
        arrays |= {f"shared.{n}.{key}": value for key, value in _named(pair)}
    weights = safetensors(arrays)
    run_directory.write_bytes(folder / "model.safetensors", weights)
    about: dict[str, Any] = {
        "version": VERSION,
        "task": fitted.schema.task,
        "notice": notice(fitted),
        "clients": list(fitted.ids),
        "has_shared_model": fitted.shared is not None,
        "target": target_facts(fitted.schema),
        "columns": [asdict(column) for column in fitted.schema.columns],
        "features": list(fitted.schema.feature_names()),
        "schema": schemas.to_toml(fitted.schema),
        "privacy": fitted.privacy,
    }
    about["digest"] = predict_numpy.digest(about, weights)
    run_directory.write_json(folder / ABOUT, about)
    run_directory.write_text(folder / "predict.py", Path(predict_numpy.__file__).read_text())
    return folder


def _named(pair: tuple[np.ndarray, np.ndarray]) -> tuple[tuple[str, np.ndarray], ...]:
    return ("weights", pair[0]), ("bias", pair[1])


def safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """Float32 arrays in the safetensors format."""
    header, body = {}, b""
    for name, values in arrays.items():
        raw = np.ascontiguousarray(values, "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


class Saved(TypedDict):
    """What `model.json` holds beside the numbers."""

    version: int
    task: str
    notice: str
    clients: list[str]
    has_shared_model: bool
    target: dict[str, Any]
    columns: list[dict[str, Any]]
    features: list[str]
    schema: str
    privacy: dict[str, Any]
    digest: str


def load(folder: Path) -> Fitted:
    """Models saved by `save`: JSON and numbers, nothing that could run."""
    from kinfolk.training import run_files

    path = folder / "model.safetensors"
    about = run_files.read_json(folder / ABOUT, Saved)
    if about["version"] != VERSION:
        raise DataError(f"{folder} has version {about['version']}; this kinfolk reads {VERSION}: update it")
    try:
        predict_numpy.check(folder, dict(about))
        schema = schemas.from_toml(about["schema"])
        arrays = predict_numpy.read_safetensors(path)
        count = sum(name.startswith("layers.") for name in arrays) // 2
        own = _part(arrays, "layers", count)
        shared = _part(arrays, "shared", count) if about["has_shared_model"] else None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise run_files.damaged(path, error) from None
    return Fitted(schema, tuple(about["clients"]), own, shared, about["privacy"])


def _part(arrays: dict[str, np.ndarray], lead: str, count: int) -> Layers:
    return tuple((arrays[f"{lead}.{n}.weights"], arrays[f"{lead}.{n}.bias"]) for n in range(count))


def open_models(path: Path) -> Fitted:
    """The models in a run directory, or in a folder of saved models."""
    from kinfolk.training import run_directory

    return load(path) if (path / ABOUT).exists() else from_run(run_directory.open_run(path))
