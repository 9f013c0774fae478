"""School at client level: choosing for oneself is free, and as good as the best common strength in hindsight."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from benchmarks.studies.client_level import run as study
from kinfolk.data.choice import DataChoice
from kinfolk.privacy.levels import client_level
from kinfolk.training.build import as_sweep
from kinfolk.training.evaluate import gains
from tests.papers.loading import need

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:delta")]


@pytest.mark.parametrize(("epsilon", "test_share"), [(1.0, 0.2), (4.0, 0.2), (4.0, 0.9)])
def test_self_selection(epsilon: float, test_share: float) -> None:
    need("school.npz")
    level = client_level(epsilon, study.DELTA, clip=study.CLIP)
    data = DataChoice("school", "as_published", test_share)
    job = study.job_for("mean_regularized", {"solved": True, "strength": 0.1}, level, data)
    swept = replace(
        as_sweep(job.algorithms[0], len(study.STRENGTHS)), strength=jnp.asarray(study.STRENGTHS, jnp.float32)
    )
    common = study.pooled(job, study.errors_of(job, *study.trained(job, swept))).mean(axis=1).min()
    own, states = study.trained(job)
    alone, aggregate, cautious = (
        study.after(job, own, states, "self_select", rule=rule) for rule in ("alone", "aggregate", "cautious")
    )
    best = min(common, study.pooled(job, alone).mean())
    assert study.pooled(job, aggregate).mean() <= 1.03 * best
    assert study.pooled(job, aggregate).mean() < study.pooled(job, alone).mean()
    assert gains(alone[0], cautious[0])["lost"] <= 0.1 * len(job.ids)


def test_plain_privacy_for_all_models_is_useless_and_joint_privacy_is_not() -> None:
    need("school.npz")
    level, data = client_level(4.0, study.DELTA, clip=study.CLIP), DataChoice("school", "as_published")
    plain, joint = (
        study.pooled(job, study.errors_of(job, *study.trained(job))).mean()
        for method in ("joint", "mean_regularized")
        for job in [study.job_for(method, {"strength": 0.1, "step_size": study.STEP}, level, data)]
    )
    assert joint < 0.03
    assert plain > 1
