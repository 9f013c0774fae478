"""The attack itself: its bounds are honest, it has power, and every algorithm at every private level is attacked."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from kinfolk.algorithms import REGISTRY
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local import Local
from kinfolk.algorithms.relation_regularized import RelationRegularized
from kinfolk.algorithms.relations import laplacian
from kinfolk.cli.main import app
from kinfolk.privacy.release import PrivacyError
from kinfolk.verify import attack_charts, attack_problems, attack_targets, covariance_attack, one_run_audit
from kinfolk.verify.attack import Problem, at_least, at_most, attack, linear_score, lower_bound
from kinfolk.verify.covariance_mechanisms import WishartAsPublished

PAIRS = [(name, level) for name, entry in REGISTRY.items() for level in entry.levels if level != "none"]
LONG = ("few_releases", "few_releases_binary")
"""Methods of which a run takes too long to be played so often, but for the long tier: what their clients release is
attacked on its own."""
FAST = [pytest.param(*pair, marks=() if pair[0] == "mean_regularized" else pytest.mark.slow) for pair in PAIRS]
FAMILY = 1 - 1e-4 / (2 * len(PAIRS))


def normal_problem(shift: float, claim: float, delta: float = 0.01) -> Problem:
    """Ten coordinates of standard normal noise, of which the canary moves one by `shift`."""

    def observe(key: jax.Array, present: jax.Array, noise: jax.Array) -> jax.Array:
        return noise * jax.random.normal(key, (10,)).at[3].add(0.0) + jnp.zeros(10).at[3].set(shift * present)

    return Problem("normal", "client", "published", claim, delta, observe)


def true_epsilon(shift: float, delta: float) -> float:
    grid = np.linspace(0, 20, 200_001)
    deltas = stats.norm.cdf(shift / 2 - grid / shift) - np.exp(grid) * stats.norm.cdf(-shift / 2 - grid / shift)
    return float(grid[np.argmax(deltas <= delta)])


@pytest.mark.parametrize("hits", [0, 1, 17, 99, 100])
def test_clopper_pearson_bounds_are_exact(hits: int) -> None:
    low, high = float(at_least(hits, 100, 0.01)), float(at_most(hits, 100, 0.01))
    assert low <= hits / 100 <= high
    if hits:
        assert stats.binom.sf(hits - 1, 100, low) == pytest.approx(0.01)
    if hits < 100:
        assert stats.binom.cdf(hits, 100, high) == pytest.approx(0.01)


def test_the_bound_is_wrong_no_more_often_than_it_says() -> None:
    likely, unlikely, delta, runs = 0.05, 0.004, 0.01, 3000
    truth = math.log((likely - delta) / unlikely)
    generator = np.random.default_rng(0)
    often, seldom = (generator.binomial(runs, p, 20_000) for p in (likely, unlikely))
    for confidence in (0.8, 0.95):
        wrong = (lower_bound(often, seldom, runs, delta, confidence) > truth).mean()
        assert 0 < wrong <= 1 - confidence


def test_delta_is_taken_off_and_nothing_is_below_zero() -> None:
    assert lower_bound(5, 0, 1000, 0.01, 0.99) == 0
    assert lower_bound(500, 500, 1000, 0.0, 0.99) == 0
    assert lower_bound(500, 0, 1000, 0.2, 0.99) < lower_bound(500, 0, 1000, 0.0, 0.99)


def test_a_linear_score_finds_the_direction_and_any_noise_free_leak() -> None:
    generator = np.random.default_rng(0)
    absent, present = (generator.normal(size=(4000, 3)) for _ in range(2))
    present[:, 1] += 1
    _, weights = linear_score(absent, present)
    assert np.argmax(np.abs(weights)) == 1
    for sample, value in ((absent, 0.0), (present, 1e-3)):
        sample[:, 2] = sample[:, 0] + value  # two outputs with the same noise: their difference has none
    centre, weights = linear_score(absent, present)
    scores = [(sample - centre) @ weights for sample in (absent, present)]
    assert scores[0].max() < scores[1].min()


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_an_attack_on_known_noise_comes_close_to_the_truth_and_stays_below(shift: float) -> None:
    truth = true_epsilon(shift, 0.01)
    found = attack(normal_problem(shift, truth), runs=100_000, with_power=False)
    assert 0.75 * truth < found.lower_bound <= truth
    assert not found.exceeded


@pytest.mark.slow
def test_power_says_whether_half_the_noise_would_be_noticed() -> None:
    truth = true_epsilon(1.0, 0.01)
    strong, weak = (attack(normal_problem(1.0, truth), runs=runs) for runs in (50_000, 200))
    assert strong.power == 1.0
    assert weak.power is not None
    assert weak.power < 0.5
    halved = attack(normal_problem(2.0, truth), runs=50_000, with_power=False)
    assert halved.exceeded
    assert halved.lower_bound == pytest.approx(strong.lower_bound_if_halved, rel=0.15)


@pytest.mark.slow
def test_attacks_can_be_repeated_and_differ_by_seed() -> None:
    first, again, other = (attack(normal_problem(1.0, 1.0), runs=5000, seed=s, with_power=False) for s in (0, 0, 1))
    assert first.rates == again.rates
    assert first.rates != other.rates


def test_published_wishart_noise_is_refuted_as_theory_says() -> None:
    for epsilon in (0.1, 0.5):
        found = attack(attack_problems.wishart_as_published(epsilon), runs=20_000, with_power=False)
        assert found.rates[0] == pytest.approx(-math.expm1(-epsilon), abs=0.01)
        assert found.rates[1] == 0
        assert found.exceeded
    with pytest.raises(PrivacyError, match="not private"):
        WishartAsPublished(1.0, 0.1).costs()


@pytest.mark.slow
def test_the_published_algorithm_is_refuted_by_its_other_clients_output_models_alone() -> None:
    for epsilon in (0.1, 1.0):
        problem = covariance_attack.covariance_outputs_as_published(epsilon)
        found = attack(problem, runs=20_000, confidence=FAMILY, with_power=False)
        assert found.rates[0] == pytest.approx(-math.expm1(-epsilon), abs=0.015)
        assert found.rates[1] == 0
        assert found.exceeded
    sound = attack(covariance_attack.covariance_outputs(), runs=20_000, confidence=FAMILY, with_power=False)
    assert 0.5 * sound.claim < sound.lower_bound <= sound.claim


@pytest.mark.parametrize(("name", "level"), FAST)
def test_every_algorithm_has_a_small_audit_with_a_canary_that_counts(name: str, level: str) -> None:
    """Without noise the two worlds look different, unless nothing is released."""
    game = attack_problems.set_up(REGISTRY[name].build(), attack_problems.level_for(level, 2.0, sampled=False))
    assert game.plan.clients <= 8
    assert attack_problems.ROUNDS <= 3
    problem = attack_problems.problem_of(game, name)
    observe = jax.jit(problem.observe)
    noise = 0 if game.charges else 1
    without, with_it = (np.asarray(observe(jax.random.key(0), jnp.float32(w), jnp.float32(noise))) for w in (0, 1))
    if not game.charges:
        assert problem.claim == 0
        np.testing.assert_array_equal(without, with_it)
    else:
        assert 1 <= problem.claim <= 4
        assert (without != with_it).any()


@pytest.mark.slow
def test_the_canary_contributes_a_clip_norm_or_nothing() -> None:
    game = attack_problems.set_up(FedAvg(), attack_problems.level_for("client", 2.0, sampled=False))
    for present in (0, 1):
        seen = attack_problems.observe_run(game, "published", jax.random.key(0), jnp.float32(present), jnp.float32(0))
        steps = np.diff(np.asarray(seen).reshape(attack_problems.ROUNDS, -1), axis=0, prepend=0)
        assert np.linalg.norm(steps[0]) == pytest.approx(present / attack_problems.CLIENTS, rel=1e-5)
        np.testing.assert_allclose(steps, np.broadcast_to(steps[0], steps.shape), atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True], ids=["everybody", "sampled"])
@pytest.mark.parametrize(("name", "level"), [pair for pair in PAIRS if pair[0] not in LONG])
def test_no_algorithm_leaks_more_than_it_claims(name: str, level: str, sampled: bool) -> None:
    problem = attack_problems.training_problem(REGISTRY[name].build(), level, name=name, sampled=sampled)
    found = attack(problem, runs=60_000, confidence=FAMILY)
    assert not found.exceeded
    if problem.has_noise:
        assert found.power is not None
        assert found.power > 0.99, "a test without power shows nothing"
        assert found.lower_bound > 0.3 * found.claim
    else:
        assert found.lower_bound == 0


PATH = laplacian(np.diag([1.0, -2.0, 3.0], 1) + np.diag([1.0, -2.0, 3.0], -1))
RELATED = {
    "a graph, signed": {"omega": PATH, "pull": "step"},
    "several groups, signed": {"relation": np.array([[1, 1, -1, 0], [0, 0, 0.5, 1]], np.float32)},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", RELATED)
def test_no_relation_leaks_more_than_it_claims(how: str) -> None:
    """With Omega every client's own message is published, and nobody's noise is averaged out."""
    algorithm = jax.tree.map(jnp.float32, RelationRegularized(**RELATED[how]))
    found = attack(attack_problems.training_problem(algorithm, "client", name=how, sampled=True), runs=15_000)
    assert not found.exceeded
    assert found.power is not None
    assert found.power > 0.99
    assert found.lower_bound > 0.3 * found.claim


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_no_run_with_parts_of_the_budget_leaks_more_than_it_claims(name: str) -> None:
    problem = attack_problems.training_problem(REGISTRY[name].build(), "example", name=name)
    found = attack(problem, runs=20_000, confidence=FAMILY, with_power=False)
    assert not found.exceeded
    assert found.lower_bound > 0.1 * found.claim  # one linear score of everything that many kinds of releases led to


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_what_a_view_sees_of_a_message_has_the_noise_of_its_round(name: str) -> None:
    """Both methods keep what they send: the two would tell the truth if they had the same noise of different size."""
    game = attack_problems.set_up(REGISTRY[name].build(), attack_problems.level_for("example", 2.0, sampled=False))
    assert game.rounds == REGISTRY[name].build().rounds  # type: ignore[attr-defined]
    watched = jax.jit(partial(attack_problems.observe_run, game, "released_model"))
    seen = np.asarray(watched(jax.random.key(0), jnp.float32(1), jnp.float32(1))).reshape(game.rounds, -1)
    state = game.start(game.plan, attack_problems.ZeroOut(game.algorithm, jnp.float32(1)), jax.random.key(0))
    public, kept = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (state.shared, state.personal[0]))
    sent = seen.shape[1] - public - kept // game.plan.clients
    np.testing.assert_allclose(seen[:, public : public + sent], seen[:, public + sent : public + 2 * sent], rtol=1e-5)


PEOPLE = [name for name, level in PAIRS if level == "example" and name not in LONG]


LONG_TIER = (pytest.mark.slow, pytest.mark.long)
OF_PEOPLE = [pytest.param(name, marks=pytest.mark.slow if name == "local" else LONG_TIER) for name in PEOPLE]


@pytest.mark.parametrize("name", OF_PEOPLE)
def test_no_algorithm_leaks_more_about_a_person_than_it_claims(name: str) -> None:
    """The canary is a person with several rows, each of which would fill the clip."""
    problem = attack_problems.training_problem(REGISTRY[name].build(), "person", name=name)
    found = attack(problem, runs=20_000, confidence=FAMILY, with_power=False)
    assert not found.exceeded
    assert found.lower_bound > 0.3 * found.claim


@pytest.mark.slow
def test_no_sound_mechanism_leaks_more_than_it_claims() -> None:
    mechanisms = [attack_targets.problem(target) for target in attack_targets.all_targets() if target.level is None]
    assert sum(problem.sampled for problem in mechanisms) == 1
    assert {problem.name for problem in mechanisms} == {
        n for n in attack_problems.MECHANISMS if "as_published" not in n
    }
    for problem in mechanisms:
        found = attack(problem, runs=100_000, confidence=FAMILY)
        assert not found.exceeded
        assert found.power is not None
        assert found.power > 0.99
        assert found.lower_bound > 0.6 * found.claim


@pytest.mark.slow
def test_every_view_can_be_taken_and_stronger_views_see_more() -> None:
    found = {}
    for level, views in attack_problems.VIEWS.items():
        for view in views:
            problem = attack_problems.training_problem(FedAvg(), level, name="fedavg", view=view)
            found[level, view] = attack(problem, runs=20_000, with_power=False)
            assert not found[level, view].exceeded
    assert found["example", "released_model"].lower_bound > found["example", "published"].lower_bound
    with pytest.raises(ValueError, match="released_model"):
        attack_problems.training_problem(FedAvg(), "client", name="fedavg", view="released_model")
    with pytest.raises(ValueError, match="none"):
        attack_problems.training_problem(FedAvg(), "none", name="fedavg")


def test_one_run_bound_follows_its_theorem() -> None:
    """Guesses that are right like a coin of bias e/(1+e) are below epsilon 1 as often as promised."""
    assert one_run_audit.one_run_bound(50, 100, 1000, 0.0, 0.99) == 0
    assert one_run_audit.one_run_bound(100, 100, 1000, 1e-4, 0.99) < one_run_audit.one_run_bound(
        100, 100, 1000, 0.0, 0.99
    )
    generator = np.random.default_rng(0)
    correct = generator.binomial(200, 1 / (1 + math.exp(-1)), 2000)
    too_high = [c for c in set(correct.tolist()) if one_run_audit.one_run_bound(c, 200, 1000, 0.0, 0.9) > 1]
    assert 0.02 < np.isin(correct, too_high).mean() <= 0.1 + 0.02


@pytest.mark.slow
def test_one_run_has_power_with_many_canaries() -> None:
    found = one_run_audit.gaussian_sum_in_one_run()
    assert not found.exceeded
    assert found.lower_bound > 1
    assert found.power >= 0.8


def test_pictures_are_well_formed() -> None:
    finding = attack(normal_problem(1.0, 1.0), runs=500, with_power=False)
    constant = replace(finding, scores=(np.zeros(5), np.zeros(5)), threshold=0.0)
    rows = [finding.record(), constant.record()]
    for svg in (
        attack_charts.two_worlds(finding),
        attack_charts.two_worlds(constant),
        attack_charts.claims_and_bounds(rows),
    ):
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("svg")
        assert "nan" not in svg


def invoke(*args: str) -> tuple[int, dict]:
    result = CliRunner().invoke(app, ["attack", *args, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_the_command_refutes_published_wishart_noise(tmp_path: Path) -> None:
    path = tmp_path / "worlds.svg"
    code, found = invoke("wishart_as_published", "--epsilon", "0.1", "--runs", "1000", "--picture", str(path))
    assert code == 0
    assert found["command"] == "attack"
    assert found["claim"] == 0.1
    assert found["confidence"] == 0.99
    assert found["lower_bound"] > 2
    assert not found["private"]
    ElementTree.parse(path)


@pytest.mark.slow
def test_the_command_attacks_everything_and_fails_when_a_claim_is_refuted() -> None:
    sound, broken = (replace(normal_problem(shift, 3.0), name=f"shift {shift}") for shift in (0.5, 4.0))
    for problems, passed in (([sound], True), ([sound, broken], False)):
        by_name = {problem.name: problem for problem in problems}
        with (
            mock.patch.object(attack_targets, "all_targets", lambda names=by_name: map(attack_targets.Target, names)),
            mock.patch.object(attack_targets, "problem", lambda target, known=by_name: known[target.name]),
        ):
            code, found = invoke("--all", "--runs", "5000")
        assert found["passed"] is passed
        assert code == (0 if passed else 1)
        assert [row["exceeded"] for row in found["results"]] == [p is broken for p in problems]


def test_everything_means_every_algorithm_and_level() -> None:
    targets = attack_targets.all_targets()
    assert {(target.name, target.level) for target in targets if target.level} == set(PAIRS)
    assert len({target.label for target in targets}) == len(targets)


@pytest.mark.slow
def test_where_nothing_is_published_nothing_is_found() -> None:
    found = attack(attack_problems.training_problem(Local(), "client", name="local"), runs=2000)
    assert (found.claim, found.lower_bound, found.power) == (0, 0, None)
