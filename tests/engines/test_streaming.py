"""The streaming engine: the resident engine's results from a store, after crashes too, and clear refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import batching, trees
from kinfolk.data import registry
from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.lazy import from_arrays, from_function
from kinfolk.engines import streaming
from kinfolk.engines.client_store import StoreError, in_memory, on_disk
from kinfolk.engines.resident import one_run
from kinfolk.engines.streaming import places_for
from kinfolk.privacy.levels import Level, PrivacyLevel, client_level, example_level
from kinfolk.privacy.mechanisms import Sampling
from kinfolk.privacy.release import PrivacyError, Tape
from kinfolk.toml import ConfigError
from kinfolk.training import backends, loop, prepare, run_directory, streaming_backend
from kinfolk.training.build import as_array
from kinfolk.training.experiment import Afterwards, Engine, Experiment, ModelChoice, Phase, Training

pytestmark = pytest.mark.usefixtures("own_programs")
ROOT = Path(__file__).parents[2]
CLIENTS, FEATURES, ROWS = 80, 3, 6


def made(ids: Any) -> tuple[Any, Any]:
    """Rows of these clients: a line of its own for each, and as many rows as its number says."""

    def of(client: Any) -> tuple[Any, Any]:
        key = jax.random.fold_in(jax.random.key(7), client)
        x = jax.random.uniform(key, (ROWS, FEATURES), jnp.float32, -1)
        return x, x.sum(axis=1) + 0.1 * (client % 5).astype(jnp.float32)

    return jax.vmap(of)(jnp.asarray(ids))


SIZES = np.sort(1 + np.arange(CLIENTS) % ROWS)
AT_EXAMPLE_LEVEL = example_level(epsilon=3.0, delta=0.1, allow_large_delta=True)


def function_data(scaling: str = "none", test_fraction: float = 0.0, seed: int = 0) -> Federation:
    return from_function(made, CLIENTS, SIZES, name="made", scaling=scaling)


def experiment(store: str, level: PrivacyLevel | None = None, **changes: object) -> Experiment:
    level = client_level(noise_multiplier=0.5, clip=1.0, cohort=8.0) if level is None else level
    first = Experiment(
        seed=3,
        data=DataChoice("made"),
        training=Training(batch_size=3),
        privacy=level,
        phases=(Phase("mean_regularized", 24),),
        engine=Engine(store),
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def long_experiment() -> Experiment:
    """Long enough to be killed many times."""
    return experiment("disk", phases=(Phase("fedavg", 60), Phase("mean_regularized", 600)))


@pytest.fixture(autouse=True)
def known_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._REGISTERED, "made", function_data)


def result_of(run: run_directory.Run) -> dict[str, np.ndarray]:
    """Models, shared state and per-client errors of a run."""
    found = {}
    for path in (*run.path.glob("*/models.npz"), *run.path.glob("*/shared.npz")):
        with np.load(path) as file:
            found |= {f"{path.name} {name}": file[name] for name in file.files if name != "ids"}
    return found


def same(a: run_directory.Run, b: run_directory.Run, tolerance: float = 1e-5) -> None:
    first, second = result_of(a), result_of(b)
    assert first.keys() == second.keys()
    assert all(np.abs(values).max() > 0.01 for name, values in first.items() if name.startswith("models"))
    for name in first:
        np.testing.assert_allclose(first[name], second[name], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(errors_of(a), errors_of(b), rtol=1e-4, atol=1e-5)


def errors_of(run: run_directory.Run) -> list[float]:
    return [line["error"][0] for line in json.loads((run.private / "clients.json").read_text())]


FINE_TUNED: dict[str, Any] = {
    "phases": (Phase("mean_regularized", 6),),
    "afterwards": Afterwards("fine_tune", {"steps": 5}),
}
CASES: dict[str, dict[str, Any]] = {
    "client level": {},
    "two phases": {"phases": (Phase("fedavg", 10), Phase("shared_and_own", 10))},
    "nobody keeps anything": {"phases": (Phase("fedavg", 10),)},
    "no privacy": {"level": PrivacyLevel(Level.NONE, cohort=8.0)},
    "everybody in every round": {"level": client_level(noise_multiplier=0.5), "training": Training(batch_size=None)},
    "clients in turns": {"model": ModelChoice("mlp", (4,)), "phases": (Phase("mean_regularized", 6),)},
    "example level": {
        "level": AT_EXAMPLE_LEVEL,
        "phases": (Phase("mean_regularized", 6),),
    },
    "example level, choices and phases": {
        "level": example_level(epsilon=30.0, delta=0.1, allow_large_delta=True, choice_epsilon=0.1),
        "phases": (Phase("fedavg", 2), Phase("ifca", 3)),
    },
    "example level, everybody's message": {
        "level": example_level(noise_multiplier=0.5),
        "phases": (Phase("mocha", 3),),
    },
    "a relation and weights by size": {
        "phases": (Phase("relation_regularized", 10),),
        "training": Training(batch_size=3, weights="size"),
    },
    "fine-tuned afterwards": FINE_TUNED,
    "chosen afterwards": {"phases": (Phase("mean_regularized", 6),), "afterwards": Afterwards("self_select")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_results_are_the_resident_engines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "clients in turns":
        monkeypatch.setattr(batching, "MOST_TOGETHER", 0)
    monkeypatch.setattr(streaming, "TURN_BYTES", 1000)  # some nine clients
    resident = loop.run(experiment("device", **CASES[name]), tmp_path)
    for store in ("memory", "disk") if name == "client level" else ("disk",):
        run = loop.run(experiment(store, **CASES[name]), tmp_path)
        same(resident, run, 1e-4 if name == "chosen afterwards" else 1e-5)  # choosing repeats what rounding began
        assert run.statement()["epsilon"] == resident.statement()["epsilon"]
        assert not list(run.private.glob("*.npy"))
        chosen = [one.private / "self_selection.json" for one in (resident, run)]
        assert [path.exists() for path in chosen] == [name == "chosen afterwards"] * 2
        if chosen[0].exists():
            first, second = (json.loads(path.read_text()) for path in chosen)
            assert second == pytest.approx(first, rel=1e-4)
            assert first["error"] != first["error_alone"]
        elif name == "fine-tuned afterwards":
            before, after = run.metrics()[-2:]
            assert after["error"] < before["error"]


@pytest.mark.slow
def test_work_after_training_that_was_cut_off_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed when all models are in their store and none is in the run's file."""

    def dies(*arguments: Any) -> None:
        raise KeyboardInterrupt

    expected = loop.run(experiment("disk", **FINE_TUNED), tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(backends.Streaming, "write_models", staticmethod(dies))
        with pytest.raises(KeyboardInterrupt):
            loop.run(experiment("disk", **FINE_TUNED), tmp_path / "broken")
    (broken,) = (tmp_path / "broken").iterdir()
    assert list(broken.glob("private/afterwards-*.npy"))
    same(expected, loop.resume(broken), tolerance=0)
    assert not list(broken.glob("private/*.npy"))


@pytest.mark.slow
def test_people_are_units_in_turns_as_in_the_resident_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "TURN_BYTES", 1000)
    whose = np.repeat(np.arange(60), 1 + np.arange(60) % 4)
    x, y = (np.asarray(part).reshape(-1, *part.shape[2:])[: len(whose)] for part in made(np.arange(CLIENTS)))
    data = from_rows(x, y, whose % 6, person_ids=whose, rows_per_person=3, test_fraction=0.3)
    own = {"level": AT_EXAMPLE_LEVEL, "data": DataChoice(), "phases": (Phase("mean_regularized", 3),)}
    resident, streamed = (loop.run(experiment(store, **own), tmp_path, data=data) for store in ("device", "disk"))
    same(resident, streamed)
    assert streamed.statement()["unit"] == "one person, with all rows, in one client"
    assert streamed.statement()["epsilon"] == resident.statement()["epsilon"]


@pytest.mark.slow
@pytest.mark.parametrize("level", [None, AT_EXAMPLE_LEVEL], ids=["client", "example"])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    level: PrivacyLevel | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a chunk was computed and before it was saved: the store has changed, the checkpoint has not."""
    expected = loop.run(experiment("disk", level), tmp_path / "whole")
    calls = []

    def dies(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        streaming_backend.save(*arguments)

    monkeypatch.setattr(backends.Streaming, "save", staticmethod(dies))
    with pytest.raises(KeyboardInterrupt):
        loop.run(experiment("disk", level), tmp_path / "broken")
    monkeypatch.undo()
    monkeypatch.setitem(registry._REGISTERED, "made", function_data)
    (broken,) = (tmp_path / "broken").iterdir()
    same(expected, loop.resume(broken), tolerance=0)


@pytest.mark.slow
def test_kill_9_at_any_moment(tmp_path: Path) -> None:
    """A run in a process of its own, killed again and again at moments of its own choice."""
    expected = loop.run(long_experiment(), tmp_path / "whole")
    command = [sys.executable, "-m", "tests.engines.killed_run", str(tmp_path / "b")]
    killed = 0
    for _ in range(30):
        with subprocess.Popen(command, cwd=ROOT) as own:
            before, deadline = rounds_of(tmp_path / "b"), time.monotonic() + 120
            while own.poll() is None and rounds_of(tmp_path / "b") < before + 150 and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(0.01 * killed)
            if own.poll() is None:
                os.kill(own.pid, signal.SIGKILL)
                killed += 1
        if own.returncode == 0:
            break
    (broken,) = (tmp_path / "b").iterdir()
    assert killed >= 3
    same(expected, run_directory.open_run(broken), tolerance=0)


def rounds_of(folder: Path) -> int:
    """Rounds that the run in a folder has in its checkpoint."""
    for path in folder.glob("*/private/checkpoint.npz"):
        with np.load(path) as file:
            return int(file["round"])
    return 0


def test_a_place_that_a_checkpoint_knows_is_not_written_to(tmp_path: Path) -> None:
    shapes = {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}
    store = on_disk(shapes, 500, tmp_path, "rows")
    ids = np.array([1, 303])
    rows, known = store.read(np.array([0, 1, 500]))
    assert not known.any()
    assert rows["w"].shape == (3, 2)
    for value in (1.0, 2.0):
        store.write(ids, {"w": np.full((2, 2), value, np.float32)})
    store.keep()
    places = store.now.copy()
    for value in (3.0, 4.0):
        store.write(ids, {"w": np.full((2, 2), value, np.float32)})
    assert store.read(ids)[0]["w"].tolist() == [[4.0, 4.0]] * 2
    assert store.leaves[0][places[ids], ids].tolist() == [[2.0, 2.0]] * 2
    memory = in_memory(shapes, 500)
    memory.write(ids, {"w": np.ones((2, 2), np.float32)})
    assert memory.read(np.array([303, 304]))[1].tolist() == [True, False]


@pytest.mark.slow
def test_data_from_a_function_arrays_and_files_are_the_same(tmp_path: Path) -> None:
    x, y = (np.asarray(part) for part in made(np.arange(CLIENTS, dtype=np.int32)))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    files = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy"]
    mapped = from_arrays(files[0], files[1], SIZES, name="made")
    outside = from_function(lambda ids: (x[ids], y[ids]), CLIENTS, SIZES, name="made", in_program=False)
    assert isinstance(mapped.train.x, np.memmap)
    few = experiment("memory", phases=(Phase("mean_regularized", 5),))
    first = loop.run(few, tmp_path)
    for data in (mapped, outside):
        same(first, loop.run(few, tmp_path, data=data))


@pytest.mark.slow
def test_a_release_is_charged_and_streamed(tmp_path: Path) -> None:
    level = client_level(epsilon=6.0, delta=1e-4, cohort=8.0, allow_large_delta=True)
    run = loop.run(experiment("disk", level, seed=None, phases=(Phase("mean_regularized", 6),)), tmp_path)
    assert 0 < run.statement()["epsilon"] <= 6.0
    assert run.statement()["simulated"] is False


@pytest.mark.slow
def test_a_release_of_silos_in_turns_is_charged_to_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "TURN_BYTES", 3000)
    few = experiment("memory", AT_EXAMPLE_LEVEL, seed=None, phases=(Phase("mean_regularized", 2),))
    run = loop.run(few, tmp_path)
    parties = run.statement()["parties"]
    assert len(parties) == CLIENTS
    assert all(0 < party["epsilon"] <= 3.0 for party in parties)


@pytest.mark.slow
def test_a_counter_that_is_not_kept_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: with it the noise of every round would be that of the first."""
    monkeypatch.setattr(streaming, "_put", lambda *_: None)
    with pytest.raises(PrivacyError, match="meters counted other uses"):
        loop.run(experiment("memory", AT_EXAMPLE_LEVEL, phases=(Phase("mean_regularized", 2),)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True])
def test_with_releases_replayed_a_silos_rows_change_nothing(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silos in turns, two rounds. Planted: a place holds the rows of the one before it, and the store two states."""
    monkeypatch.setattr(streaming, "TURN_BYTES", 1500)
    x, y = (np.array(part) for part in made(np.arange(CLIENTS, dtype=np.int32)))
    other = y.copy()
    other[CLIENTS // 2] += 1
    job = prepare.prepare(
        experiment("memory", AT_EXAMPLE_LEVEL, phases=(Phase("mean_regularized", 2),)), [from_arrays(x, y, SIZES)]
    )
    algorithm, terms, clients = as_array(job.algorithms[0]), as_array(job.terms), trees.row(job.clients, 0)

    def run(y: np.ndarray, tape: Tape) -> streaming.Streamed:
        store = partial(in_memory, clients=CLIENTS)
        state = streaming.start(job.plan, algorithm, jax.random.key(0), store)
        state = replace(state, meters=replace(state.meters, tape=tape))
        data = from_arrays(x, y, SIZES).train
        return streaming.run_rounds(job.plan, algorithm, terms, clients, data, state, range(2))

    shapes = {
        k: (1, 1, CLIENTS, max(1, 2 * n.max()), job.checks[0].sizes.get(k, 1)) for k, n in job.account.uses.items()
    }
    recorded = run(y, Tape({kind: jnp.zeros(shape, jnp.float32) for kind, shape in shapes.items()}, "record"))
    assert recorded.meters.tape is not None
    tape = Tape(recorded.meters.tape.values, "replay")
    if planted:  # what a round keeps depends on rows other than through a release
        part = streaming.clients_part

        def leaking(program: Any, fixed: Any, shared: Any, kept: Any, cohort: Any, number: Any) -> Any:
            messages, personal, counted = part(program, fixed, shared, kept, cohort, number)
            return messages, jax.tree.map(lambda leaf: leaf + cohort.examples[1].sum(), personal), counted

        monkeypatch.setattr(streaming, "clients_part", leaking)
    before, after = run(y, tape), run(other, tape)
    pairs = zip(*(jax.tree.leaves((state.shared, state.store.leaves)) for state in (before, after)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs) is not planted
    if not planted:
        np.testing.assert_allclose(
            one_run(before.shared)[0]["weights"], one_run(recorded.shared)[0]["weights"], rtol=1e-4
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": 2}, "seeds=2: a store holds the clients of one run: start one for each"),
        ({"training": Training(tail=0.5)}, "tail=0.5: every round would have to read and write the models of all"),
        ({"level": PrivacyLevel(Level.NONE), "phases": (Phase("mocha", 2),)}, "mocha reads every client's message"),
    ],
)
def test_what_cannot_be_streamed_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare.prepare(experiment("disk", **changes))


def test_a_full_disk_is_noticed_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="GB are free"):
        on_disk({"w": jax.ShapeDtypeStruct((10**6,), jnp.float32)}, 10**9, tmp_path, "rows")
    assert not list(tmp_path.iterdir())


def test_no_client_is_left_out_whom_the_account_counts() -> None:
    """A capacity has its overflow in the account. Without one the account has none, and so everybody has a place."""
    half = Sampling(np.float32(0.5))
    assert places_for(Level.CLIENT, half, 1000) == 1000
    assert places_for(Level.CLIENT, replace(half, capacity=640), 1000) == 640
    assert places_for(Level.NONE, half, 1000) < 1000
