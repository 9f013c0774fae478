"""A job calibrated here and run elsewhere: the same result, charged before, checked after."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk.accounting.ledger import read_lines
from kinfolk.privacy.levels import client_level
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training import job_file, loop, offload, run_directory
from kinfolk.training.experiment import Afterwards, Experiment, Phase, Training

pytestmark = pytest.mark.usefixtures("small_schools")

WITHOUT_ACCOUNTING = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("dp_accounting", "scipy", "typer", "rich"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
from kinfolk.training.job_file import main
main()
"""


def small() -> Experiment:
    phases = (Phase("fedavg", 3), Phase("mean_regularized", 4, {"strength": 0.5}))
    level = client_level(epsilon=8, delta=1e-3, clip_quantile=0.5)
    after = Afterwards("fine_tune", {"steps": 3})
    return Experiment(seed=3, seeds=2, privacy=level, phases=phases, training=Training(tail=0.3), afterwards=after)


@pytest.mark.slow
def test_an_exported_job_gives_the_same_models_and_is_charged_before(tmp_path: Path) -> None:
    here = loop.run(small(), tmp_path / "here")
    there = offload.export(small(), tmp_path / "there")
    assert len(read_lines(there.public / "ledger.jsonl")) > 0, "charged before it leaves"
    assert not there.done()
    job, result = there.private / "job.npz", tmp_path / "result.npz"
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_ACCOUNTING, str(job), str(result)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["run"] > 0
    offload.merge(there.path, result)
    assert there.statement()["parties"] == here.statement()["parties"]
    for name in ("private/models.npz", "public/shared.npz"):
        with np.load(here.path / name) as one, np.load(there.path / name) as other:
            for key in one.files:
                if one[key].dtype.kind == "f":
                    np.testing.assert_allclose(one[key], other[key], rtol=1e-5, atol=1e-6)
    assert there.metrics()[-1]["error"] == pytest.approx(here.metrics()[-1]["error"], rel=1e-5)


@pytest.mark.slow
def test_a_result_that_used_more_than_was_charged_is_not_taken(tmp_path: Path) -> None:
    run = offload.export(small(), tmp_path)
    job, result = run.private / "job.npz", tmp_path / "result.npz"
    parcel = job_file.load(job)
    job_file.save(replace(parcel, rounds=(3, 5)), job)
    subprocess.run(
        [sys.executable, "-m", "kinfolk.training.job_file", str(job), str(result)], check=True, capture_output=True
    )
    with pytest.raises(PrivacyError, match="the result of another job"):
        offload.merge(run.path, result)
    begun = json.loads((run.private / "run.json").read_text())
    run_directory.write_json(run.private / "run.json", {**begun, "job": job_file.digest(job)})
    with pytest.raises(PrivacyError, match="other uses than the ledger was charged"):
        offload.merge(run.path, result)
    settings = run.public / "experiment.toml"
    settings.write_text(settings.read_text().replace("zero_out", "replace_one"))
    with pytest.raises(PrivacyError, match="was changed since"):
        offload.merge(run.path, result)
    assert not run.done()


@pytest.mark.slow
def test_a_release_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="draws its noise where its ledger is"):
        offload.export(replace(small(), seed=None, seeds=1), tmp_path)
    own = loop.run(Experiment(seed=0, phases=(Phase("local", 1),)), tmp_path)
    with pytest.raises(PrivacyError, match="only an exported run takes a result"):
        offload.merge(own.path, tmp_path / "result.npz")


def test_a_phase_after_clusters_is_refused(tmp_path: Path) -> None:
    phases = (Phase("ifca", 2), Phase("mean_regularized", 2))
    with pytest.raises(ConfigError, match="does not end with one shared model"):
        loop.run(replace(small(), phases=phases), tmp_path)
