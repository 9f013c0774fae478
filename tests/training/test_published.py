"""Numbers that may be published: charged before they are computed, one release, nothing else of the test rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.accounting import composition, joint
from kinfolk.accounting.ledger import Ledger, LedgerError, read_lines
from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level, none
from kinfolk.privacy.release import PrivacyError, Tape
from kinfolk.privacy.tables import Unit, counts
from kinfolk.training import loop, published, run_directory
from kinfolk.training.evaluation_account import laplace_scale
from kinfolk.training.evaluation_units import Question, per_row, question
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.shown import Release, metrics_of
from tests.training.public_files import nothing_else_is_public

RELEASED = Release(1.0, 1.0, "", simulated=True)


def wards(seed: int = 0, test_fraction: float = 0.4) -> Federation:
    """Three clients; the outcome follows the first of two features."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(-1, 1, (360, 2)).astype(np.float32)
    y = (generator.random(360) < 1 / (1 + np.exp(-3 * x[:, 0]))).astype(np.int32)
    ids = np.repeat(["a", "b", "c"], 120)
    return from_rows(x, y, ids, name="wards", outcome="binary", test_fraction=test_fraction, grouping="ward")


def experiment(privacy: PrivacyLevel, **changes: object) -> Experiment:
    first = Experiment(
        seed=0,
        model=ModelChoice("logistic"),
        training=Training(batch_size=None),
        privacy=privacy,
        phases=(Phase("mean_regularized", 4),),
    )
    return replace(first, **changes)  # type: ignore[arg-type]


EXAMPLE = example_level(epsilon=2.0, delta=1e-4)
CLIENT = client_level(epsilon=2.0, delta=1e-4)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> run_directory.Run:
    folder = tmp_path_factory.mktemp("runs")
    return loop.run(experiment(EXAMPLE, evaluate=1.0), folder, data=wards())


def asked(level: PrivacyLevel, run: run_directory.Run, data: Federation) -> tuple[Job, Question]:
    job = prepare(experiment(level), data)
    return job, question(job, run, 1.0)


def test_a_planned_evaluation_is_paid_for_and_in_the_statement(simulated: run_directory.Run) -> None:
    (shown,) = published.shown_before(simulated)
    found = {metric["name"]: metric for metric in shown["metrics"]}
    assert {"AUC", "accuracy", "Brier score", "calibration slope"} <= set(found)
    assert all(metric["low"] <= metric["value"] <= metric["high"] for metric in shown["metrics"])
    assert found["AUC"]["low"] < 0.87 < found["AUC"]["high"]
    lines = [line for line in read_lines(simulated.public / "ledger.jsonl") if line.kind == EVALUATION]
    assert [line.uses for line in lines] == [1, 1, 1]
    assert {line.party for line in lines} == {"a", "b", "c"}
    assert {(line.cost.mechanism, round(line.cost.noise_multiplier, 5)) for line in lines} == {("laplace", 1.0)}
    statement = simulated.statement()
    assert 2.0 < statement["epsilon"] <= 3.0
    assert statement["epsilon"] <= (simulated.experiment().privacy.promise or 0)
    assert "MAY BE SHOWN" in (simulated.public / "statement.txt").read_text()
    assert any("other than those that may be shown" in item for item in statement["not_covered"])
    nothing_else_is_public(simulated)


def test_the_confusion_table_is_of_everybody_and_agrees_with_the_metrics(simulated: run_directory.Run) -> None:
    (shown,) = published.shown_before(simulated)
    found = {metric["name"]: metric["value"] for metric in shown["metrics"]}
    pairs = {(pair["outcome"], pair["predicted"]): pair for pair in shown.get("confusion", ())}
    assert {*pairs} == {(a, b) for a in ("no", "yes") for b in ("no", "yes")}
    assert sum(pair["share"] for pair in pairs.values()) == pytest.approx(1, abs=0.05)
    right = pairs["no", "no"]["share"] + pairs["yes", "yes"]["share"]
    assert right == pytest.approx(found["accuracy"], abs=0.03)
    assert "yes came out, no was predicted" in (simulated.public / "statement.txt").read_text()


def test_of_a_group_that_is_all_noise_nothing_is_said(simulated: run_directory.Run) -> None:
    _, first = asked(EXAMPLE, simulated, wards())
    three = replace(first, board=replace(first.board, groups=3), groups=("a", "b", "nobody"))
    cells = np.zeros(three.board.shape)
    cells[:2] = 100 * (1 + np.arange(cells[0].size).reshape(cells[0].shape))
    cells[2] = np.random.default_rng(0).laplace(0, 1, cells[2].shape)
    three = replace(three, mask=np.ones((1, round(cells[:2].sum())), bool))
    one, _, empty = metrics_of(three, cells.ravel(), RELEASED)["groups"]
    assert one["metrics"]
    assert one["about"] > 1000
    assert empty["metrics"] == empty["differences"] == []


def test_without_room_in_the_promise_it_is_refused_and_nothing_is_charged(tmp_path: Path) -> None:
    run = loop.run(experiment(EXAMPLE), tmp_path, data=wards())
    before = (run.public / "ledger.jsonl").read_bytes()
    with pytest.raises(LedgerError, match="--evaluate"):
        published.evaluate(run.path, 0.5, data=wards())
    assert (run.public / "ledger.jsonl").read_bytes() == before
    assert not (run.public / run_directory.EVALUATIONS).exists()


@pytest.mark.slow
def test_a_second_evaluation_costs_again_and_stops_at_the_promise(tmp_path: Path) -> None:
    run = loop.run(experiment(replace(EXAMPLE, promise=4.5)), tmp_path, data=wards())
    first = published.evaluate(run.path, 0.5, data=wards())
    spent = run.statement()["epsilon"]
    second = published.evaluate(run.path, 0.5, data=wards())
    assert first["table"] != second["table"]  # fresh noise
    assert run.statement()["epsilon"] > spent > 2.0
    with pytest.raises(LedgerError, match="beyond"):
        published.evaluate(run.path, 2.0, data=wards())
    assert len(published.shown_before(run)) == 2


@pytest.mark.slow
def test_a_release_has_exact_noise_and_keeps_its_promise(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    run = loop.run(experiment(EXAMPLE, seed=None, evaluate=1.0), tmp_path / "runs", data=wards(), ledger=ledger)
    (shown,) = published.shown_before(run)
    assert not shown["simulated"]
    table = np.asarray(shown["table"])
    assert table.sum() == pytest.approx(shown["counted"], abs=6 * (2 * 3 * len(table)) ** 0.5)
    kinds = {line.kind for line in read_lines(run.public / "ledger.jsonl")}
    assert kinds == {"gradient", EVALUATION}
    assert run.statement()["epsilon"] == run.experiment().privacy.promise
    with pytest.raises(LedgerError):
        published.evaluate(run.path, 0.5, data=wards())
    nothing_else_is_public(run)
    with Ledger(ledger) as again:
        assert sum(line.kind == EVALUATION for line in again.lines) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kinfolk.training.prepare.count_uses", None)  # refused before anything is counted or calibrated
        with pytest.raises(LedgerError, match=r"has spent 2\.\d+ .* a release of epsilon=2 would reach beyond"):
            loop.run(experiment(EXAMPLE, seed=None, evaluate=1.0), tmp_path / "runs", data=wards(), ledger=ledger)


@pytest.mark.slow
def test_a_promise_to_people_at_two_clients_has_room_for_an_evaluation(tmp_path: Path) -> None:
    """Laplace noise of two clients comes to more than the Gaussian noise that limits are made for."""
    rows = wards()
    x, y = np.concatenate([rows.train.x, rows.train.x]).reshape(-1, 2)[:360], np.arange(360) % 2
    twice = np.tile(np.arange(120), 3) + np.repeat([0, 0, 500], 120)
    data = from_rows(x, y, np.repeat(["a", "b", "c"], 120), person_ids=twice, rows_per_person=2, outcome="binary")
    own = experiment(replace(EXAMPLE, clients_per_person=2), seed=None, evaluate=1.0)
    run = loop.run(own, tmp_path / "runs", data=replace(data, name="twice"), ledger=tmp_path / "ledger.jsonl")
    assert len(published.shown_before(run)) == 1
    each, person = run.statement()["epsilon"], run.statement().get("person")
    assert each == run.experiment().privacy.promise
    assert person == dict(zip(("epsilon", "delta"), joint.budget([(each, 1e-4)] * 3, 2), strict=True))
    assert each < joint.budget([(each, 1e-4)] * 3, 2)[0] < 2 * each


@pytest.mark.slow
def test_at_client_level_the_client_is_the_unit(tmp_path: Path) -> None:
    run = loop.run(experiment(CLIENT, evaluate=2.0), tmp_path, data=wards())
    (shown,) = published.shown_before(run)
    assert shown["counted"] == 3
    assert shown["parties"] == 1
    assert any(metric["name"].startswith("share of clients that gain") for metric in shown["metrics"])
    (line,) = [line for line in read_lines(run.public / "ledger.jsonl") if line.kind == EVALUATION]
    assert line.cost.noise_multiplier == pytest.approx(0.5)


def test_neighbours_by_replacement_and_people_in_several_clients_get_more_noise() -> None:
    assert laplace_scale(replace(EXAMPLE, relation="replace_one"), 0.5) == pytest.approx(4.0)
    assert laplace_scale(replace(CLIENT, clients_per_person=3), 0.5) == pytest.approx(6.0)
    assert laplace_scale(EXAMPLE, 0.5) == pytest.approx(2.0)


@pytest.mark.parametrize("aggregator", ["secure", "local"])
def test_where_clients_add_the_noise_an_evaluation_has_theirs_and_its_epsilon(aggregator: str) -> None:
    job = prepare(experiment(replace(CLIENT, aggregator=aggregator)), wards())
    account, mechanism = published.account_of(job, 1.0)
    (cost,) = mechanism.costs()
    assert composition.epsilon([(cost, 1)], 1e-4) == pytest.approx(1.0, abs=2e-3)
    assert mechanism.law == "normal"
    assert mechanism.excess == (1.5 if aggregator == "secure" else 3.0)  # of what is paid for
    assert account.uses[EVALUATION].sum() == 1


def test_replay_with_the_release_held_everything_shown_stays_the_same(simulated: run_directory.Run) -> None:
    """One client's test rows change; with the recorded table all that is shown is the same, bit for bit."""
    data = wards()
    job, first = asked(EXAMPLE, simulated, data)
    ready = published.plan(job, first, 1.0)
    size = {EVALUATION: jnp.zeros((3, 1, first.cells), jnp.float32)}
    meter = replace(published.meters(jax.random.key(3), 3), tape=Tape(size, "record"))
    table, after = published.ask(first, meter, ready.mechanism)
    assert after.tape is not None
    changed = replace(data, test=replace(data.test, x=-data.test.x, y=1 - data.test.y))
    _, other = asked(EXAMPLE, simulated, changed)
    recorded = replace(published.meters(jax.random.key(3), 3), tape=Tape(after.tape.values, "replay"))
    replayed, _ = published.ask(other, recorded, ready.mechanism)
    np.testing.assert_array_equal(replayed, table)
    assert metrics_of(other, replayed, RELEASED) == metrics_of(first, table, RELEASED)
    fresh, _ = published.ask(other, published.meters(jax.random.key(3), 3), ready.mechanism)
    assert np.abs(fresh - table).max() > 5  # the rows do matter


def test_edges_from_test_scores_are_caught_by_the_flow_check(
    simulated: run_directory.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = asked(EXAMPLE, simulated, wards())
    job = prepare(experiment(EXAMPLE), wards())
    honest = published.table_of

    def quantiles(board, meter, mechanism, units, mask):  # type: ignore[no-untyped-def]
        found = jnp.quantile(units.x[..., 0], jnp.linspace(0.1, 0.9, board.edges.shape[0]))
        return honest(replace(board, edges=found), meter, mechanism, units, mask)

    mechanism = published.plan(job, first, 1.0).mechanism
    monkeypatch.setattr(published, "table_of", quantiles)
    for exact in (False, True):
        with pytest.raises(PrivacyError, match="depends on data"):
            published.checked(first, mechanism, exact)


def test_two_releases_on_one_charge_are_caught(simulated: run_directory.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    job, first = asked(EXAMPLE, simulated, wards())
    mechanism = published.account_of(job, 1.0)[1]
    honest = published.table_of

    def twice(board, meter, mechanism, units, mask):  # type: ignore[no-untyped-def]
        table, meter = honest(board, meter, mechanism, units, mask)
        more, meter = honest(board, meter, mechanism, units, mask)
        return table + more, meter

    monkeypatch.setattr(published, "table_of", twice)
    for exact in (False, True):
        with pytest.raises(PrivacyError, match="releases"):
            published.checked(first, mechanism, exact)


@pytest.mark.slow
def test_rows_as_units_at_client_level_are_caught_by_search(tmp_path: Path) -> None:
    """The unit is the client with its model and all its rows: exchanging both moves the whole table by at most 2."""
    run = loop.run(experiment(CLIENT), tmp_path, data=wards())
    _, real = asked(CLIENT, run, wards())
    board, units, total = real.board, real.units, counts()
    assert isinstance(units, Unit)

    def moved(first: Unit, second: Unit) -> float:
        weights = jnp.ones(len(first.keep), jnp.float32)
        found = [np.asarray(total.clipped(board, one, weights, jnp.float32(1)), float) for one in (first, second)]
        return float(np.abs(found[0] - found[1]).sum())

    def as_rows(given: Unit) -> Unit:
        """The bug: each row is a unit, with its client's model."""
        length = given.keep.shape[1]
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, 1, *leaf.shape[2:]), replace(given, params=None))
        return replace(rows, params=jax.tree.map(lambda leaf: jnp.repeat(leaf, length, axis=0), given.params))

    flipped = replace(
        units,
        params=jax.tree.map(lambda leaf: leaf.at[0].set(-5 * jnp.ones_like(leaf[0])), units.params),
        y=np.concatenate([1 - units.y[:1], units.y[1:]]),
    )
    assert moved(units, flipped) <= 2 + 1e-4
    assert moved(as_rows(units), as_rows(flipped)) > 20


def test_a_persons_rows_are_one_unit() -> None:
    made = question_rows()
    units, mask = per_row(made, np.array([[7, 7, 2, 7, 0], [1, 1, 1, 1, 1]]), 3)
    assert mask.tolist() == [[True, True], [True, False]]
    assert units.keep.sum(axis=2).tolist() == [[1, 3], [2, 0]]
    assert units.y[0, 1].tolist()[:3] == [0, 1, 3]
    assert per_row(made, np.array([[7, 7, 2, 7, 0], [1, 1, 1, 1, 1]]), 2)[0].y.shape == (2, 2, 2)  # and not more rows
    alone, each = per_row(made)
    assert alone.y.shape == (2, 5, 1)
    assert each.sum() == 6


@pytest.mark.slow
def test_an_evaluation_of_people_counts_people(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    people = np.repeat(np.arange(90), generator.integers(1, 6, 90))
    x = generator.uniform(-1, 1, (len(people), 2)).astype(np.float32)
    names = np.array(["a", "b", "c"])[people % 3]
    data = from_rows(x, (x[:, 0] > 0).astype(int), names, person_ids=people, rows_per_person=4, outcome="binary")
    run = loop.run(experiment(EXAMPLE), tmp_path, data=data)
    job = prepare(run.experiment(), data)
    found = question(job, run, 1.0)
    assert found.unit == "people, each with the mean of its rows"
    assert found.mask.sum(axis=1).tolist() == [len(np.unique(own)) for own in job.federations[0].test_units]
    assert isinstance(found.units, Unit)
    assert found.units.y.shape == (3, found.mask.shape[1], 4)
    assert published.account_of(job, 1.0)[0].unit == "person"


def question_rows() -> Unit:
    keep = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)
    return Unit(np.zeros((2, 5, 1)), np.arange(10).reshape(2, 5), np.zeros((2, 5), int), keep)


def test_what_cannot_be_evaluated_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="needs test rows"):
        loop.run(experiment(EXAMPLE, evaluate=1.0), tmp_path, data=wards(test_fraction=0.0))
    with pytest.raises(PrivacyError, match="no account"):
        loop.run(experiment(none(), evaluate=1.0), tmp_path, data=wards())


def test_the_files_say_the_same(simulated: run_directory.Run) -> None:
    (shown,) = json.loads((simulated.public / run_directory.EVALUATIONS).read_text())
    assert simulated.statement().get("may_be_shown") == [shown]
    assert len(shown["table"]) == int(np.prod(shown["shape"]))
