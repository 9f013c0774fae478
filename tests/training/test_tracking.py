"""Numbers in TensorBoard and MLflow; what a release may say there."""

from pathlib import Path

import pytest

from kinfolk.privacy.levels import example_level
from kinfolk.toml import ConfigError
from kinfolk.training import loop
from kinfolk.training.experiment import Experiment, Phase

pytestmark = pytest.mark.usefixtures("small_schools")
PHASES = (Phase("local", 2),)
LEVEL = example_level(epsilon=3.0)


def logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show, by name."""
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[import-untyped]

    found: dict[str, list[tuple[int, float]]] = {}
    (path,) = folder.glob("events*")
    content, place = path.read_bytes(), 0
    while place < len(content):
        length = int.from_bytes(content[place : place + 8], "little")
        event = Event.FromString(content[place + 12 : place + 12 + length])
        place += 16 + length
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


@pytest.mark.slow
def test_a_simulation_logs_what_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlflow").as_uri())
    experiment = Experiment(name="watched", seed=0, privacy=LEVEL, phases=PHASES)
    run = loop.run(experiment, tmp_path / "runs", track=("tensorboard", "mlflow"))
    shown = logged(run.private / "tensorboard")
    assert {"error", "epsilon"} <= set(shown)
    assert shown["epsilon"][-1] == (2, pytest.approx(3, rel=1e-2))
    (found,) = mlflow.search_runs(output_format="list")
    assert found.data.params["methods"] == "local"
    assert found.data.metrics["error"] == pytest.approx(shown["error"][-1][1], rel=1e-5)


@pytest.mark.slow
def test_a_release_logs_its_epsilon_alone(tmp_path: Path) -> None:
    run = loop.run(Experiment(privacy=LEVEL, phases=PHASES), tmp_path, track=("tensorboard",))
    assert set(logged(run.private / "tensorboard")) == {"epsilon"}


def test_an_unknown_tracker_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tensorboard, mlflow"):
        loop.run(Experiment(seed=0, privacy=LEVEL, phases=PHASES), tmp_path, track=("wandb",))
    assert not list(tmp_path.iterdir())
