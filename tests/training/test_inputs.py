"""Data and models that are objects: trained, checked, and given again to resume."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import (
    DataChoice,
    Experiment,
    Federation,
    Phase,
    Training,
    client_level,
    example_level,
    from_functions,
    from_rows,
    none,
    resume,
    run,
)
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training import job_file, offload
from kinfolk.training.inputs import as_units
from kinfolk.types import Model


def federation(seed: int = 0, rows: int = 20, name: str = "theirs") -> Federation:
    x = np.random.default_rng(0).uniform(-1, 1, size=(3 * rows, 2)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int32)
    return from_rows(x, y, np.repeat(list("abc"), rows), seed=seed, name=name, outcome="binary")


def network(slope: float = 1.0, width: int = 4, outcome: str = "binary") -> Model:
    def init(key: jax.Array) -> dict[str, jax.Array]:
        first, second = jax.random.split(key)
        return {"in": jax.random.normal(first, (2, width)), "out": jax.random.normal(second, (width,))}

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.tanh(slope * (x @ params["in"])) @ params["out"]

    return from_functions(init, apply, outcome)


def experiment(**changes: Any) -> Experiment:
    level = client_level(noise_multiplier=1.0)
    return replace(Experiment(seed=0, privacy=level, phases=(Phase("mean_regularized", 4),)), **changes)


def stopped(*arguments: Any, **options: Any) -> Path:
    """A run that was stopped after its first chunk."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(*arguments, progress=stop, **options)
    (path,) = arguments[1].iterdir()
    return path


def models_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(next(path.glob("*/models.npz"))) as file:
        return {name: file[name] for name in file.files if name != "ids"}


@pytest.mark.parametrize(
    "level",
    [
        example_level(epsilon=8.0, delta=1e-3),
        client_level(noise_multiplier=1.0),
    ],
)
@pytest.mark.slow
def test_an_own_model_on_own_data_is_trained_recorded_and_resumed(level: Any, tmp_path: Path) -> None:
    wanted = experiment(privacy=level, training=Training(None))
    whole = run(wanted, tmp_path / "whole", data=federation(), model=network())
    found = whole.experiment()
    assert (found.data.name, found.data.given, found.model.name) == ("theirs", True, "own")
    assert whole.statement()["data"] == "theirs"
    path = stopped(wanted, tmp_path / "stopped", data=federation(), model=network())
    with pytest.raises(ConfigError, match=r"data and model of this run .* resume\(path, data=..., model=...\)"):
        resume(path)
    with pytest.raises(ConfigError, match=r"resume\(path, model=...\)"):
        resume(path, data=federation())
    with pytest.raises(PrivacyError, match="data differ from those the run began with"):
        resume(path, data=federation(rows=21), model=network())
    with pytest.raises(PrivacyError, match="model computes something else"):
        resume(path, data=federation(), model=network(slope=2.0))
    resumed = resume(path, data=federation(), model=network())
    for name, values in models_of(whole.path).items():
        np.testing.assert_array_equal(values, models_of(resumed.path)[name])


@pytest.mark.slow
def test_one_federation_per_seed_or_one_for_all(tmp_path: Path) -> None:
    two = experiment(privacy=none(), seeds=2, phases=(Phase("local", 1),))
    own = network()
    for data in (federation(), [federation(0), federation(1)]):
        where = run(two, tmp_path, data=data, model=own)
        assert len(json.loads((where.private / "clients.json").read_text())[0]["error"]) == 2
    with pytest.raises(ConfigError, match="data has 3 federations and seeds=2: give one for each seed"):
        run(two, tmp_path, data=[federation()] * 3, model=own)


def test_what_is_no_data_or_no_model_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model=Model: an experiment names its model .* run\(experiment, model=...\)"
    ):
        Experiment(model=network())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"data=Federation: an experiment names its data"):
        Experiment(data=federation())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="model=str: give a Model"):
        run(experiment(), tmp_path, data=federation(), model="mlp")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="data=ndarray: give a Federation"):
        run(experiment(), tmp_path, data=[np.ones(3)])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="model predicts number, but data 'theirs' holds binary"):
        run(experiment(), tmp_path, data=federation(), model=network(outcome="number"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("level", [example_level(epsilon=8.0, delta=1e-3), client_level(noise_multiplier=1.0)])
def test_a_model_that_holds_data_is_found_by_the_flow_check(level: Any, tmp_path: Path) -> None:
    """Constants count as data, at client level too: a model must not bring rows of its own."""
    rows = jnp.asarray(federation().train.x[0])

    def apply(params: jax.Array, x: jax.Array) -> jax.Array:
        return x @ params + rows.mean()

    own = from_functions(lambda key: jnp.zeros(2), apply, "binary")
    with pytest.raises(PrivacyError, match="the loss reads an array besides its arguments"):
        run(experiment(privacy=level), tmp_path, data=federation(), model=own)
    begun = from_functions(lambda key: rows.mean(axis=0), lambda params, x: x @ params, "binary")
    with pytest.raises(PrivacyError, match="the initial state depends on data"):
        run(experiment(privacy=level), tmp_path, data=federation(), model=begun)


@pytest.mark.slow
def test_features_of_several_arrays_need_a_model_and_get_one(tmp_path: Path) -> None:
    x = {"a": np.ones((20, 2), np.float32), "b": np.ones((20, 3), np.float32)}
    data = from_rows(x, np.zeros(20, np.float32), ["p", "q"] * 10, name="two")

    def apply(params: dict[str, jax.Array], x: dict[str, jax.Array]) -> jax.Array:
        return x["a"] @ params["a"] + x["b"] @ params["b"]

    own = from_functions(lambda key: {"a": jnp.zeros(2), "b": jnp.zeros(3)}, apply, "number")
    assert run(experiment(), tmp_path, data=data, model=own).done()


@pytest.mark.slow
def test_own_data_travel_to_another_machine_and_own_models_do_not(tmp_path: Path) -> None:
    wanted = experiment(privacy=none(), phases=(Phase("local", 2),), model=Experiment().model)
    x = np.ones((20, 2), np.float32)
    data = from_rows(x, x[:, 0], ["p", "q"] * 10, name="ones")
    where = offload.export(wanted, tmp_path, data=data)
    assert where.experiment().data == DataChoice("ones", given=True)
    state, errors, _ = job_file.run(job_file.load(where.private / "job.npz"))
    leaves = {f"leaf{n}": np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(job_file.result_arrays(state)))}
    np.savez(tmp_path / "result.npz", job=np.array(job_file.digest(where.private / "job.npz")), **errors, **leaves)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="data of this run were given as objects"):
        offload.merge(where.path, tmp_path / "result.npz")
    assert offload.merge(where.path, tmp_path / "result.npz", data=data).done()


def test_people_are_units_where_clients_pay_and_rows_where_the_client_is_the_unit() -> None:
    """Also in the streaming store, which is for client level alone."""
    data = from_rows(np.ones((6, 2)), np.ones(6), ["p", "q"] * 3, person_ids=[1, 2, 1, 2, 3, 4], test_fraction=0.0)
    assert as_units(data, example_level(1.0)).train.sizes.tolist() == [2, 2]
    assert as_units(data, client_level(1.0)) is data
