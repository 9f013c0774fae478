"""A public relation between clients, from every door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kinfolk import (
    Engine,
    Experiment,
    PersonalizedRegressor,
    Phase,
    Training,
    client_level,
    example_level,
    none,
    recommend,
    run,
)
from kinfolk.algorithms.relations import graph_of, laplacian, options_for, relation_of, with_relation
from kinfolk.deploy.study import Roster, Study
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training import job_file, offload
from kinfolk.training.build import build_algorithm
from kinfolk.training.relation_files import read_relation
from tests.algorithms.towns import GRAPH, GROUPS, MATRIX, OMEGA, SLOPES, TOWNS, WEIGHTS, federation


def experiment(level: PrivacyLevel, options: dict[str, Any], rounds: int = 30, **more: Any) -> Experiment:
    phase = Phase("relation_regularized", rounds, {"strength": 10.0, "step_size": 0.5, **options})
    return Experiment(seed=0, privacy=level, training=Training(None), phases=(phase,), **more)


def weights_of(path: Path) -> dict[str, float]:
    with np.load(next(path.glob("*/models.npz"))) as file:
        return dict(zip(file["ids"].tolist(), file["[0]['weights']"][:, 0, 0].tolist(), strict=True))


LEVELS = [example_level(epsilon=50.0, delta=1e-3), client_level(noise_multiplier=0.05)]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=["example", "client"])
def test_lists_arrays_groups_and_toml_mean_the_same(level: PrivacyLevel, tmp_path: Path) -> None:
    found = []
    for options in ({"relation": MATRIX}, {"relation": np.array(MATRIX)}, {"groups": GROUPS}):
        wanted = experiment(level, options)
        again = from_toml(to_toml(wanted), Experiment)
        assert again == wanted
        found.append(weights_of(run(again, tmp_path, data=federation()).path))
    assert found[0] == found[1] == found[2]
    together = weights_of(run(experiment(level, {}), tmp_path, data=federation()).path)
    assert all(found[0][town] * SLOPES[town] > 0.3 for town in TOWNS), "each town's model goes its group's way"
    spread = [max(w.values()) - min(w.values()) for w in (found[0], together)]
    assert spread[0] > 2 * spread[1], "without a relation all are pulled to one mean"


def test_toml_as_people_write_it() -> None:
    text = """
    [[phases]]
    method = "relation_regularized"
    rounds = 2
    options.relation = [[1, 1, 0], [0, 0, 1]]

    [[phases]]
    method = "relation_regularized"
    options.groups = {graz = "a", lyon = "b", oslo = ["a", "b"]}
    """
    first, second = from_toml(text, Experiment).phases
    ids = ("graz", "lyon", "oslo")
    assert build_algorithm(first, "none", ids).relation.tolist() == [[1, 1, 0], [0, 0, 1]]  # type: ignore[attr-defined]
    assert build_algorithm(second, "none", ids).relation.tolist() == [[1, 0, 1], [0, 1, 1]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"relation": [[1, 1, 0]]},
            r"relation has shape \(1, 3\), and there are 4 clients: give one row per group .*lyon",
        ),
        ({"relation": [1, 1, 1, 1]}, r"relation has shape \(4,\)"),
        ({"relation": [[1, 1], [1]]}, "no matrix of numbers"),
        ({"relation": [[1, 1, 1, "x"]]}, "no matrix of numbers"),
        ({"relation": [[1, 1, 1, float("nan")]]}, "not finite: give weights; negative ones mean opposites"),
        ({"relation": [[1, 1, 1, 0]]}, "only zeros for client 'turku': give it a group"),
        ({"relation": [[1, 1, 1, 1], [0, 0, 0, 0]]}, "only zeros in row 1"),
        ({"groups": {"graz": "a"}}, "groups does not name client 'lyon': all 4 clients need a group"),
        ({"groups": {**GROUPS, "bern": "a"}}, "groups names 'bern', which is none of the 4 clients"),
        ({"groups": ["a", "b"]}, "must name each client's group"),
        ({"groups": GROUPS, "relation": MATRIX}, "groups and relation both say"),
        (
            {"relation": np.triu(np.ones((4, 4)))},
            "as many independent groups as clients, 4: .* give fewer groups, or, .*, graph",
        ),
        ({"groups": {town: town for town in TOWNS}}, "as many independent groups as clients, 4: .* nobody is pulled"),
        ({"relation": np.eye(4)}, "may mean pairs of clients: give weights between them as graph, .* Omega as omega"),
        ({"relation": laplacian(np.array(WEIGHTS))}, "relation is symmetric, with a row for every client"),
        ({"relation": WEIGHTS}, "relation is symmetric, with a row for every client"),
        ({"graph": GRAPH, "omega": OMEGA}, "graph and omega both say"),
        (
            {"omega": MATRIX},
            r"omega has shape \(2, 4\), and there are 4 clients: .*lyon.*, or, for neighbours .*, graph",
        ),
        ({"omega": GROUPS}, "omega is no matrix of numbers"),
        ({"omega": np.triu(OMEGA)}, "omega has two weights for 'graz' and 'lyon': it must be the same both ways"),
        ({"omega": np.eye(4)}, "omega joins nobody"),
        ({"omega": WEIGHTS}, "eigenvalue below 0, -2.06, so that models that grow without end .* clients, graph"),
        ({"omega": [[0, float("nan")]]}, "omega holds numbers that are not finite"),
        ({"relation": MATRIX, "graph": GRAPH}, "relation and graph both say"),
        ({"graph": MATRIX}, r"graph has shape \(2, 4\), and there are 4 clients: give one row and one column for each"),
        ({"graph": np.ones((4, 4))}, "client 'graz' as its own neighbour: its weight must be 0"),
        ({"graph": np.triu(np.ones((4, 4)), 1)}, "two weights for 'graz' and 'lyon': it must be the same both ways"),
        ({"graph": np.zeros((4, 4))}, "graph joins nobody"),
        ({"graph": [[0, float("inf")]]}, "graph holds numbers that are not finite"),
        ({"graph": "graz"}, "graph is no matrix of numbers"),
        (
            {"graph": {"graz": {"lyon": float("nan")}, "oslo": {}, "turku": {}}},
            "graph holds numbers that are not finite",
        ),
        ({"relation": [[1e30, 1, 1, 1]]}, r"relation holds 1e\+30: only proportions matter"),
        ({"groups": {**GROUPS, "lyon": None}}, "a name is missing, None stands for it"),
        ({"graph": {"graz": {"lyon": "much"}, "oslo": {}, "turku": {}}}, "graph is no matrix of numbers"),
        (
            {"graph": {"graz": {"lyon": 1.0}}},
            "graph does not name client 'oslo': all 4 clients must be",
        ),
        ({"graph": {**GRAPH, "bern": {}}}, "graph names 'bern', which is none of the 4 clients"),
        ({"graph": {**GRAPH, "oslo": {"lyon": 3.0}}}, "the edge between 'oslo' and 'lyon' has two weights"),
    ],
)
def test_what_is_no_relation_of_these_clients_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_algorithm(Phase("relation_regularized", 1, options), "none", TOWNS)


def test_other_methods_have_no_relation() -> None:
    with pytest.raises(ConfigError, match="mean_regularized has no option 'groups'"):
        build_algorithm(Phase("mean_regularized", 1, {"groups": GROUPS}), "none", TOWNS)


def test_weights_count_by_their_share() -> None:
    """Half the weights are the same relation: only proportions matter for what a client is pulled to."""
    first, second = (
        build_algorithm(Phase("relation_regularized", 1, {"relation": scale * np.array(MATRIX)}), "none", TOWNS)
        for scale in (1.0, 0.25)
    )
    shared = {"w": np.array([[1.0], [3.0]], np.float32)}
    for slot, expected in ((0, 3.0), (1, 1.0)):
        assert float(first.centre(shared, slot)["w"][0]) == expected  # type: ignore[attr-defined]
        assert float(second.centre(shared, slot)["w"][0]) == pytest.approx(expected)  # type: ignore[attr-defined]


def test_without_clients_there_is_no_matrix_yet() -> None:
    assert with_relation({"groups": GROUPS, "strength": 1.0}, None) == {"strength": 1.0}
    assert relation_of({"groups": GROUPS}, TOWNS).tolist() == MATRIX


def test_a_graph_as_people_write_it() -> None:
    for graph in (GRAPH, {"oslo": {"lyon": 2}, "lyon": {"graz": 0.5, "oslo": 2.0}, "turku": []}, WEIGHTS):
        phase = recommend(federation(), none(), relation={"graph": graph}, seed=0).phases[0]
        assert phase.method == "relation_regularized"
        omega = build_algorithm(phase, "none", TOWNS).omega  # type: ignore[attr-defined]
        assert omega.tolist() == [[0.5, -0.5, 0, 0], [-0.5, 2.5, -2, 0], [0, -2, 2, 0], [0, 0, 0, 0]]
    assert graph_of({"graz": ["oslo", "turku"], "lyon": "turku"}, TOWNS).tolist() == [
        [0, 0, 1, 1],
        [0, 0, 0, 1],
        [1, 0, 0, 0],
        [1, 1, 0, 0],
    ]


def test_omega_as_people_write_it(tmp_path: Path) -> None:
    (tmp_path / "omega.json").write_text(json.dumps({"omega": OMEGA}))
    for relation in ({"omega": OMEGA}, {"omega": np.array(OMEGA)}, read_relation(tmp_path / "omega.json")):
        wanted = recommend(federation(), none(), relation=relation, seed=0)
        (phase,) = from_toml(to_toml(wanted), Experiment).phases
        assert build_algorithm(phase, "none", TOWNS).omega.tolist() == OMEGA  # type: ignore[attr-defined]
    assert options_for({"graz": "graph"}) == {"groups": {"graz": "graph"}}, "a client's group may be called anything"


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=["example", "client"])
@pytest.mark.parametrize("pull", ["step", "round"])
def test_a_contrast_of_clients_is_kept_small(level: PrivacyLevel, pull: str, tmp_path: Path) -> None:
    """An Omega that is no Laplacian of neighbours: graz + lyon + oslo are to add up to nothing; turku is left alone."""
    omega = np.outer([1, 1, 1, 0], [1, 1, 1, 0])
    sums = []
    for strength in (0.0, 10.0):
        wanted = experiment(level, {"omega": omega, "pull": pull, "strength": strength}, 60)
        found = weights_of(run(wanted, tmp_path / str(strength), data=federation()).path)
        sums.append(abs(found["graz"] + found["lyon"] + found["oslo"]))
        assert found["turku"] < -0.6
    assert sums[1] < 0.4 * sums[0]


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=["example", "client"])
def test_neighbours_learn_from_each_other_and_opposites_too(level: PrivacyLevel, tmp_path: Path) -> None:
    """Graz is like oslo and the opposite of lyon; turku, which is joined to nobody, learns alone."""
    graph = {"graz": {"oslo": 1.0, "lyon": -1.0}, "oslo": {"lyon": -1.0}, "turku": {}}
    found = weights_of(run(experiment(level, {"graph": graph}), tmp_path, data=federation()).path)
    assert all(found[town] * SLOPES[town] > 0.3 for town in TOWNS)
    sizes = [found[town] * SLOPES[town] for town in ("graz", "lyon", "oslo")]
    assert max(sizes) - min(sizes) < 0.25, "what is joined is pulled together, turned round where it is the opposite"


@pytest.mark.slow
def test_an_estimator_takes_groups_or_a_matrix() -> None:
    data = federation()
    x = data.train.x.reshape(-1, 1)
    y, who = data.train.y.ravel(), np.repeat(data.ids, 20)
    for relation in (GROUPS, np.array(MATRIX)):
        fitted = PersonalizedRegressor(privacy=none(), relation=relation, rounds=5, random_state=0)
        fitted.fit(x, y, clients=who)
        assert fitted.experiment_.phases[0].method == "relation_regularized"
        assert fitted.predict(np.ones((2, 1)), clients=["graz", "lyon"])[0] > 0


@pytest.mark.slow
def test_a_relation_is_streamed_and_carried(tmp_path: Path) -> None:
    wanted = experiment(client_level(noise_multiplier=0.5, cohort=2.0), {"groups": GROUPS}, 6)
    expected = weights_of(run(wanted, tmp_path / "a", data=federation()).path)
    streamed = experiment(wanted.privacy, {"groups": GROUPS}, 6, engine=Engine("memory"))
    found = weights_of(run(streamed, tmp_path / "b", data=federation()).path)
    assert found == pytest.approx(expected, rel=1e-5)
    where = offload.export(wanted, tmp_path / "c", data=federation())
    state, errors, _ = job_file.run(job_file.load(where.private / "job.npz"))
    leaves = {f"leaf{n}": np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(job_file.result_arrays(state)))}
    digest = np.array(job_file.digest(where.private / "job.npz"))
    np.savez(tmp_path / "result.npz", job=digest, **errors, **leaves)  # type: ignore[arg-type]
    merged = offload.merge(where.path, tmp_path / "result.npz", data=federation())
    assert weights_of(merged.path) == pytest.approx(expected, rel=1e-5)


def test_a_study_agrees_on_the_relation() -> None:
    roster = Roster("slopes", TOWNS, ("x",), "number")
    first, second = (
        Study(roster, experiment(client_level(epsilon=1.0), options)) for options in ({"groups": GROUPS}, {})
    )
    assert first.digest != second.digest
    assert np.asarray(first.algorithms[0].relation).tolist() == MATRIX  # type: ignore[attr-defined]
    assert jax.tree.leaves(first.first())[0].shape[0] == 2, "one model per group"
