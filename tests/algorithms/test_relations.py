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
    Federation,
    PersonalizedRegressor,
    Phase,
    Training,
    client_level,
    example_level,
    from_rows,
    none,
    recommend,
    run,
)
from kinfolk.algorithms.relations import graph_of, laplacian, options_for, relation_of, with_relation
from kinfolk.data.federation import DataError
from kinfolk.data.tables.read import groups_by
from kinfolk.deploy.study import Roster, Study
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training import job_file, offload, run_directory
from kinfolk.training.build import build_algorithm
from kinfolk.training.experiment import load
from kinfolk.training.relation_files import read_relation

TOWNS = ("graz", "lyon", "oslo", "turku")
SLOPES = {"graz": 1.0, "lyon": -1.0, "oslo": 1.0, "turku": -1.0}
GROUPS = {"graz": "up", "lyon": "down", "oslo": "up", "turku": "down"}
GRAPH = {"graz": {"lyon": 0.5}, "lyon": {"oslo": 2.0}, "turku": {}}
WEIGHTS = [[0, 0.5, 0, 0], [0.5, 0, 2, 0], [0, 2, 0, 0], [0, 0, 0, 0]]
OMEGA = [[2.0, -1.0, 1.0, 0.0], [-1.0, 1.0, -1.0, 0.0], [1.0, -1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
MATRIX = [[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]


def federation() -> Federation:
    x = np.random.default_rng(0).uniform(-1, 1, size=(4 * 25, 1)).astype(np.float32)
    who = np.repeat(TOWNS, 25)
    return from_rows(x, x[:, 0] * np.array([SLOPES[town] for town in who], np.float32), who, name="slopes")


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


@pytest.mark.parametrize("form", ["json groups", "json matrix", "csv"])
def test_the_command_line_takes_a_file(form: str, tmp_path: Path, command: Any) -> None:
    data = federation()
    lines = [
        f"{town},{data.train.x[k, n, 0]},{data.train.y[k, n]}" for k, town in enumerate(data.ids) for n in range(20)
    ]
    (tmp_path / "towns.csv").write_text("\n".join(["town,x,y", *lines]) + "\n")
    relation = tmp_path / ("r.csv" if form == "csv" else "r.json")
    groups = "\n".join(["client,group", *(f"{town}, {group}" for town, group in GROUPS.items())])
    relation.write_text(groups if form == "csv" else json.dumps(GROUPS if "groups" in form else MATRIX))
    words = ("--client", "town", "--target", "y", "--relation", relation, "--level", "none", "--seed", 0, "--rounds", 2)
    code, _, err = command("train", tmp_path / "towns.csv", *words, "--output", tmp_path / "runs")
    assert code == 0, err
    (phase,) = run_directory.open_run(tmp_path / "runs" / "latest").experiment().phases
    assert phase.method == "relation_regularized"
    assert build_algorithm(phase, "none", TOWNS).relation.tolist() == MATRIX  # type: ignore[attr-defined]


def test_a_graph_is_a_file_of_edges(tmp_path: Path) -> None:
    path = tmp_path / "graph.csv"
    path.write_text("client,neighbour,weight\ngraz,lyon,0.5\nlyon, oslo ,2\nturku,turku,1\n")
    (graph,) = read_relation(path).values()
    assert graph_of(graph, TOWNS).tolist() == WEIGHTS
    phase = Phase("relation_regularized", 2, {"graph": graph})
    (again,) = from_toml(to_toml(Experiment(phases=(phase,))), Experiment).phases
    assert again == phase
    path.write_text("client,neighbour\ngraz,lyon\n")
    assert read_relation(path) == {"graph": {"graz": {"lyon": 1.0}, "lyon": {"graz": 1.0}}}
    for text, words in (
        ("client,neighbour,weight\na,b\n", "must have 3 columns in every line"),
        ("client,neighbour,weight\na,b,much\n", "could not convert string to float: 'much'"),
        ("client,neighbour,weight\na,b,1\nb,a,2\n", "the edge between 'b' and 'a' has two weights: give it once"),
        ("from,to,weight\na,b,1\n", "under exactly these names"),
        ("lyon,a\ngraz,b\n", "under exactly these names in the first line"),
        ("client,group\ngraz,\n", "names no group for client 'graz'"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_relation(path)
    with pytest.raises(ConfigError, match="not finite"):
        build_algorithm(Phase("relation_regularized", 1, {"groups": {"a": {"a": float("inf")}}}), "none", ("a",))


def test_a_client_with_several_lines_is_in_several_groups(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text("client,group\ngraz,a\nlyon,b\ngraz,b\n")
    assert read_relation(path) == {"graz": ["a", "b"], "lyon": "b"}
    with pytest.raises(ConfigError, match=r"cannot be read .* for a column of the tables, column:region"):
        read_relation(Path("region"))


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


def test_a_file_that_is_no_relation_is_refused(tmp_path: Path, command: Any) -> None:
    for name, text, words in (
        ("a.json", "{", "is no JSON"),
        ("a.csv", "client,group\nx\n", "must have two columns"),
        ("b.json", "[[1]]", "relation has shape (1, 1), and there are 60 clients"),
    ):
        (tmp_path / name).write_text(text)
        code, _, err = command("train", "--relation", tmp_path / name, "--seed", 0, "--output", tmp_path / "runs")
        assert code == 1
        assert words in " ".join(err.split())
    code, _, err = command("train", "--relation", tmp_path / "none.json", "--seed", 0)
    assert "cannot be read" in err


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


def test_a_column_of_the_tables_names_groups(tmp_path: Path) -> None:
    for town, region in (("graz", "alps"), ("lyon", "west"), ("turin", "alps")):
        (tmp_path / f"{town}.csv").write_text(f"x,region\n1,{region}\n2, {region}\n")
    files = sorted(tmp_path.glob("*.csv"))
    assert groups_by("region", files, None) == {"graz": "alps", "lyon": "west", "turin": "alps"}
    whole = tmp_path / "all.csv"
    whole.write_text("town,x,region\nturku,1,north\noslo,2,north\nturku,3,coast\n")
    with pytest.raises(DataError, match=r"client 'turku' is in group 'north' and, in .*, in 'coast'"):
        groups_by("region", [whole], "town")
    whole.write_text("town,x,region\nturku,1,north\noslo,2,\n")
    with pytest.raises(DataError, match="is empty in"):
        groups_by("region", [whole], "town")
    with pytest.raises(DataError, match="regoin"):
        groups_by("regoin", [whole], "town")


def test_a_file_of_settings_may_name_a_column_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read there is written down, so a run directory needs neither."""
    monkeypatch.chdir(tmp_path)
    Path("all.csv").write_text("town,x,region\nturku,1,north\ngraz,2,alps\nturku,3,north\n")
    Path("edges.csv").write_text("client,neighbour,weight\ngraz,turku,0.5\n")
    Path("omega.json").write_text('{"omega": [[1, -1], [-1, 1]]}')
    columns = '[target]\nname = "x"\nlow = 0\nhigh = 3\n[[columns]]\nname = "y"\nlow = 0\nhigh = 1\n'
    Path("schema.toml").write_text('client = "town"\n' + columns)
    graph = {"graph": {"graz": {"turku": 0.5}, "turku": {"graz": 0.5}}}
    for said, expected in (
        ('groups = "column:region"', {"groups": {"turku": "north", "graz": "alps"}}),
        ('relation = "column:region"', {"groups": {"turku": "north", "graz": "alps"}}),
        ('relation = "edges.csv"', graph),
        ('graph = "edges.csv"', graph),
        ('omega = "omega.json"', {"omega": [[1, -1], [-1, 1]]}),
        ('groups = {turku = "north", graz = "alps"}', {"groups": {"turku": "north", "graz": "alps"}}),
    ):
        for whose in ('client = "town"\ntarget = "x"', 'schema = "schema.toml"'):
            data = f'[data]\nname = "towns"\nfiles = ["all.csv"]\n{whose}\n'
            words = f'[[phases]]\nmethod = "relation_regularized"\noptions.strength = 2.0\noptions.{said}\n'
            Path("e.toml").write_text(data + words)
            found = load(Path("e.toml"))
            assert found.phases[0].options == {"strength": 2.0, **expected}
            assert from_toml(to_toml(found), Experiment) == found
    Path("e.toml").write_text(words.replace(said, 'groups = "column:region"'))
    with pytest.raises(ConfigError, match=r"e.toml: relation=column:region names a column, and no table was given"):
        load(Path("e.toml"))
    Path("e.toml").write_text(words.replace(said, 'groups = "regions.csv"'))
    with pytest.raises(ConfigError, match=r"e.toml: relation=regions.csv cannot be read"):
        load(Path("e.toml"))


def test_tuning_takes_a_relation(tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Experiment] = []

    def stopped(experiment: Experiment, *_: object, **__: object) -> None:
        seen.append(experiment)
        raise ConfigError("stopped here")

    monkeypatch.setattr("kinfolk.training.tune.tune", stopped)
    (tmp_path / "groups.json").write_text(json.dumps(GROUPS))
    words = ("tune", "--method", "relation_regularized", "--relation", tmp_path / "groups.json", "--seed", 0)
    _, _, err = command(*words, "--option", "strength=1,2")
    assert "stopped here" in err
    assert seen[0].phases[0].options == {"groups": GROUPS, "step_size": 0.1}


@pytest.mark.slow
def test_the_command_line_takes_a_column(tmp_path: Path, command: Any) -> None:
    lines = [f"{town},{n % 7},{'hills' if town == 'lyon' else 'coast'},{n % 2}" for town in TOWNS for n in range(20)]
    (tmp_path / "all.csv").write_text("\n".join(["town,x,region,sick", *lines]) + "\n")
    words = ("train", tmp_path / "all.csv", "--client", "town", "--target", "sick", "--seed", 0, "--rounds", 2)
    code, _, err = command(*words, "--relation", "column:region", "--output", tmp_path / "runs")
    assert code == 0, err
    (phase,) = run_directory.open_run(tmp_path / "runs" / "latest").experiment().phases
    assert phase.method == "relation_regularized"
    assert phase.options["groups"] == {town: "hills" if town == "lyon" else "coast" for town in TOWNS}
    code, _, err = command("train", "--relation", "column:region", "--seed", 0)
    assert code == 1
    assert "names a column, and no table was given" in " ".join(err.split())
