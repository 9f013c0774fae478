"""Relations in files, in columns of tables, and where they are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinfolk import Experiment, Phase
from kinfolk.algorithms.relations import graph_of
from kinfolk.data.federation import DataError
from kinfolk.data.tables.read import groups_by
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training import run_directory
from kinfolk.training.build import build_algorithm
from kinfolk.training.experiment import load
from kinfolk.training.relation_files import read_relation, refuse_protected
from kinfolk.training.statements import RELATIONS, add_relations
from tests.algorithms.towns import GROUPS, MATRIX, TOWNS, WEIGHTS, federation


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


PROTECTED = '[[columns]]\nname = "region"\nkind = "category"\nvalues = ["coast", "hills"]\n'


@pytest.mark.slow
def test_a_column_that_a_release_protects_says_nothing_of_who_is_related(tmp_path: Path, command: Any) -> None:
    """What is read there is written into the public part of a run."""
    lines = [f"{town},{n / 20},{'hills' if town == 'lyon' else 'coast'},{n / 20}" for town in TOWNS for n in range(20)]
    (tmp_path / "all.csv").write_text("\n".join(["town,x,region,y", *lines]) + "\n")
    schema, settings = tmp_path / "schema.toml", tmp_path / "e.toml"
    declared = 'name = "towns"\nclient = "town"\n[target]\nname = "y"\nlow = 0\nhigh = 1\n'
    declared += '[[columns]]\nname = "x"\nlow = 0\nhigh = 1\n'
    words = ("train", tmp_path / "all.csv", "--schema", schema, "--relation", "column:region", "--rounds", 1)
    words += ("--level", "client", "--epsilon", 2, "--delta", 0.02, "--output", tmp_path / "runs")
    settings.write_text(
        f'[data]\nname = "towns"\nfiles = ["{tmp_path}/all.csv"]\nschema = "{schema}"\n[privacy]\nlevel = "client"\n'
        'epsilon = 2.0\n[[phases]]\nmethod = "relation_regularized"\noptions.groups = "column:region"\n'
    )
    schema.write_text(declared + PROTECTED)
    from_settings = ("train", settings, "--output", tmp_path / "runs")
    for said, spelled in ((words, ""), (from_settings, ""), (from_settings, "/")):
        settings.write_text(settings.read_text().replace("region", f"region{spelled}"))
        code, _, err = command(*said)
        assert code == 1
        assert "the schema has column 'region' among what a release protects" in " ".join(err.split())
    assert not (tmp_path / "runs").exists()
    schema.write_text(declared)
    code, _, err = command(*words, "--seed", 0)
    assert code == 0, err
    where = run_directory.open_run(tmp_path / "runs" / "latest")
    assert RELATIONS in where.statement()["not_covered"]


def test_who_a_person_is_names_no_group(tmp_path: Path) -> None:
    target, x = Column("y", low=0, high=1), Column("x", low=0, high=1)
    for schema, columns in (
        (Schema(target, (x,), client="town", person="patient"), ("patient", "x", "y")),
        (Schema(target, (x,), client="town", row="visit"), ("visit",)),
        (Schema(target, (x,), client="patient", person="patient"), ("x",)),
    ):
        for column in columns:
            with pytest.raises(ConfigError, match=f"column '{column}' among what a release protects"):
                refuse_protected(Path(f"column:{column}"), schema)
        for free in ("column:region", "column:town", "groups.csv", f"column:{schema.client}"):
            refuse_protected(Path(free), schema)


def test_a_relation_is_said_to_be_public() -> None:
    for options, expected in (({"groups": {"a": "b"}}, [RELATIONS]), ({"strength": 1.0}, [])):
        result: Any = {"not_covered": []}
        add_relations(result, [Phase("relation_regularized", 1, options)])
        assert result["not_covered"] == expected
