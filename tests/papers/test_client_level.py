"""School at client level: choosing for oneself is free, and as good as the best common strength in hindsight."""

import pytest

from benchmarks.studies.client_level import run as study
from kinfolk.data.choice import DataChoice
from kinfolk.privacy.levels import client_level
from kinfolk.training.evaluate import gains
from tests.papers.loading import need

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:delta")]


@pytest.mark.parametrize(("epsilon", "test_share"), [(1.0, 0.2), (4.0, 0.2), (4.0, 0.9)])
def test_self_selection(epsilon: float, test_share: float) -> None:
    need("school.npz")
    level = client_level(epsilon, study.DELTA, clip=study.CLIP)
    data, options = DataChoice("school", "as_published", test_share), {"solved": True, "strength": 0.1}
    swept = study.figure_for("mean_regularized", options, level, data, over={"strength": study.STRENGTHS})
    common = study.pooled(swept, study.errors_of(swept, study.trained(swept))).min()
    figure = study.figure_for("mean_regularized", options, level, data)
    states = study.trained(figure)
    alone, aggregate, cautious = (
        study.after(figure, states, "self_select", rule=rule) for rule in ("alone", "aggregate", "cautious")
    )
    by_itself, chosen = (study.pooled(figure, errors)[0] for errors in (alone, aggregate))
    assert chosen <= 1.03 * min(common, by_itself)
    assert chosen < by_itself
    assert gains(alone[0], cautious[0])["lost"] <= 0.1 * figure.plan.clients


def test_plain_privacy_for_all_models_is_useless_and_joint_privacy_is_not() -> None:
    need("school.npz")
    level, data = client_level(4.0, study.DELTA, clip=study.CLIP), DataChoice("school", "as_published")
    plain, joint = (
        study.pooled(figure, study.errors_of(figure, study.trained(figure)))[0]
        for method in ("joint", "mean_regularized")
        for figure in [study.figure_for(method, {"strength": 0.1, "step_size": study.STEP}, level, data)]
    )
    assert joint < 30  # times 1000
    assert plain > 1000
