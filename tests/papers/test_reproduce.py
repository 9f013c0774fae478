"""Every table and figure of the papers: listed, run in a small cell, judged by what was measured alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.femnist import study as femnist
from benchmarks.studies.reproduce import cross_silo_measures as cross
from benchmarks.studies.reproduce import model_protected
from benchmarks.studies.reproduce import run as study
from benchmarks.studies.reproduce.files import as_json, of_record
from benchmarks.studies.reproduce.full_settings import STUDIES
from benchmarks.studies.reproduce.page import again, beside, index, page, picture, sentence, table
from benchmarks.studies.reproduce.pmtl_measures import BOTH
from benchmarks.studies.reproduce.pmtl_printed import AXES, epsilon_at_end
from benchmarks.studies.reproduce.records import (
    PAPERS,
    VERDICTS,
    Claim,
    Item,
    Measured,
    Point,
    Printed,
    ahead,
    clearly,
    verdict,
)
from tests.papers.loading import need

KNOWN = study.items()
NEEDS = {
    "FEMNIST": "femnist.npz",
    "School": "school.npz",
    "Vehicle": "vehicle_ditto_train.npz",
    "MNIST": "mnist.npz",
    "CIFAR": "mnist.npz",
    "plain client-level": "femnist.npz",
}
CURVES = {"ours": [Point(1.0, 0.5, 0.01), Point(2.0, 0.7, 0.01)]}
RIGHT = Printed("ours", 0.71, "ours", 2.0, 0.02)
FOUND = Measured(CURVES, "some data", 2, "epsilon 1")


def item(claim: bool, printed: tuple[Printed, ...] = ()) -> Item:
    return Item("pmtl/figure-0", "t", "s", (Claim("c", lambda _: claim),), lambda size: FOUND, printed)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("made", "measured", "expected"),
    [
        (item(True, (RIGHT,)), FOUND, "holds"),
        (item(True), FOUND, "holds in shape"),
        (item(True, (replace(RIGHT, value=0.8),)), FOUND, "holds in shape"),
        (item(True, (RIGHT, replace(RIGHT, x=9.0))), FOUND, "holds in shape"),
        (item(True, (replace(RIGHT, value=0.6, bound="above"),)), FOUND, "holds"),
        (item(True, (replace(RIGHT, value=0.6, bound="below"),)), FOUND, "holds in shape"),
        (item(False, (RIGHT,)), FOUND, "does not hold"),
        (item(True, (RIGHT,)), replace(FOUND, stand_in=True), "cannot be had here"),
        (item(True), None, "not run yet"),
        (Item("pmtl/figure-0", "t", "s"), None, "nothing to measure"),
    ],
)
def test_a_verdict_follows_from_claims_numbers_and_data(made: Item, measured: Measured | None, expected: str) -> None:
    assert expected in VERDICTS
    assert verdict(made, measured) == expected


@pytest.mark.fast
def test_the_papers_numbers_stand_beside_ours_in_table_and_picture() -> None:
    printed = (RIGHT, replace(RIGHT, x=9.0, what="elsewhere"), replace(RIGHT, value=0.4, x=1.0, spread=0.03))
    made = item(True, printed)
    rows = beside(made, FOUND)
    assert "| ours | 2 | 0.71 | 0.7 (0.01) | 0.02 | yes |" in rows
    assert "| elsewhere | 9 | 0.71 | not measured | 0.02 |  |" in rows
    assert "| ours | 1 | 0.4 ± 0.03 | 0.5 (0.01) | 0.02 | no |" in rows
    assert "not compared" in " ".join(beside(made, replace(FOUND, stand_in=True)))
    assert "paper: ours: 2, 0.71" in picture(made, FOUND)


@pytest.mark.fast
def test_a_best_strength_at_the_edge_of_its_grid_is_called_so() -> None:
    rows = table(item(True), replace(FOUND, strengths={"ours": [(1.0, 3.0, True), (2.0, 100.0, False)]}))
    assert "| best strength, ours | 3 | 100 (edge) |" in rows


@pytest.mark.fast
def test_a_method_that_is_best_as_one_of_its_ends_is_called_so() -> None:
    at_end = replace(FOUND, strengths={"ours": [(1.0, math.inf, True), (2.0, math.inf, True)]})
    assert sentence(item(True), at_end) == "So here too: c. ours is best with strength infinite."
    between = replace(FOUND, strengths={"ours": [(1.0, math.inf, True), (2.0, 3.0, True)]})
    assert sentence(item(True), between) == "So here too: c."
    assert "| best strength, ours | infinite | infinite |" in table(item(True), at_end)


@pytest.mark.fast
@pytest.mark.parametrize("what", AXES)
def test_epsilon_by_our_account_ends_within_the_papers_axis(what: str) -> None:
    axis, ours = AXES[what]
    assert round(epsilon_at_end(what), 1) == ours < axis


@pytest.mark.fast
def test_grids_go_from_training_alone_to_averaging() -> None:
    """In the settings of data that can be had, quick and full; pulled in every step, as printed."""
    full = [made.setting for study in STUDIES.values() for made in study.values()]
    settings = [
        cross.SCHOOL,
        cross.VEHICLE,
        cross.VEHICLE_FULL,
        cross.MNIST,
        cross.CIFAR,
        replace(cross.MNIST, methods=BOTH),
        *full,
    ]
    for method in (method for setting in settings for method in setting.methods.values() if method.strengths):
        assert method.options["pull"] == "step"
        assert method.strengths[0] == 0
        assert method.strengths[-1] == (100 if method.algorithm == "mocha" else math.inf)  # which has no such end
        assert list(method.strengths) == sorted(method.strengths)
    assert femnist.METHODS["personal"][1] == {"pull": "step"}
    assert (femnist.STRENGTHS[0], femnist.STRENGTHS[-1]) == (0, math.inf)


@pytest.mark.fast
def test_sizes_are_kept_apart_and_a_stand_in_takes_no_datas_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    record: dict[str, Any] = {"item": "pmtl/figure-0", "size": "quick", "seconds": 2.0, "device": "d", **asdict(FOUND)}
    study.keep(record)
    study.keep({**record, "stand_in": True, "data": "made"})
    assert study.stored()["pmtl/figure-0"]["data"] == "some data"
    study.keep({**record, "size": "full", "seconds": 9.0})
    kept = study.stored()["pmtl/figure-0"]
    assert (kept["size"], kept["seconds"], kept["quick_seconds"]) == ("full", 9.0, 2.0)


@pytest.mark.fast
def test_a_results_file_is_json_for_every_reader() -> None:
    found = replace(FOUND, strengths={"ours": [(1.0, math.inf, True), (2.0, 0.0, True)]})
    text = as_json({"item": "pmtl/figure-0", **asdict(found)})
    assert of_record(json.loads(text, parse_constant=pytest.fail)) == found  # called for Infinity and NaN alone
    for path in study.RESULTS.glob("*/*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)


def expected_names() -> set[str]:
    panels: Mapping[str, list[str]] = {
        "pmtl": [
            *["1", "2a", "2b", "2c", "3a", "3b", "3c", "4", "5", "6", "7a", "7b", "7c", "8"],
            "table-1",
            "table-2",
            "table-3",
        ],
        "model-protected": [*["1", "2", "3", "4a", "4b", "5", "6a", "6b", "7", "8a", "8b"], "table-1", "table-2"],
        "cross-silo": ["1", "2", "3a", "3b", "3c", "3d", "4", "5", "6a", "6b", "6c", "6d", "7a", "7b", "7c"],
    }
    return {
        f"{paper}/{name if name.startswith('table') else f'figure-{name}'}"
        for paper, own in panels.items()
        for name in own
    }


@pytest.mark.fast
def test_every_table_and_figure_is_listed() -> None:
    assert set(KNOWN) == expected_names()


def test_what_is_stored_gives_the_pages() -> None:
    records = study.stored()
    assert set(records) == {name for name, made in KNOWN.items() if made.measure}  # all of them were run
    for name, record in records.items():
        measured = of_record(record)
        assert record["size"] in ("quick", "full")
        assert verdict(KNOWN[name], measured) in VERDICTS[:4], name
        assert (study.PAGES / f"{name.replace('/', '-')}.svg").read_text() == picture(KNOWN[name], measured), name
        assert sentence(KNOWN[name], measured)
    for paper in PAPERS:
        assert (study.PAGES / f"{paper}.md").read_text() == page(paper, KNOWN.values(), records), paper
    assert (study.PAGES / "index.md").read_text() == index(list(KNOWN.values()), records)


@pytest.mark.fast
def test_every_quick_run_can_be_judged() -> None:
    """Full runs hide quick ones: a statement about a curve that a quick run does not have would end `--all --quick`."""
    records = [json.loads(path.read_text()) for path in (study.RESULTS / "quick").glob("*.json")]
    assert {record["item"] for record in records} == {name for name, made in KNOWN.items() if made.measure}
    for record in records:
        measured = of_record(record)
        assert verdict(KNOWN[record["item"]], measured) in VERDICTS[:4], record["item"]
        assert sentence(KNOWN[record["item"]], measured)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, made in KNOWN.items() if made.measure])
def test_a_small_cell_of_every_item_runs(name: str) -> None:
    for word, file in NEEDS.items():
        if word in KNOWN[name].title:
            need(file)
    record = study.measure(KNOWN[name], "cell")
    assert record["curves"]
    assert all(points for points in record["curves"].values())
    assert of_record(json.loads(as_json(record))).curves == record["curves"]
    if name.startswith("model-protected"):  # cells of the other papers leave methods out
        quick = study.RESULTS / "quick" / f"{name.replace('/', '-')}.json"
        assert record["curves"].keys() == json.loads(quick.read_text())["curves"].keys()


@pytest.mark.fast
def test_better_is_by_more_than_two_standard_errors() -> None:
    curves = {
        "a": [Point(1.0, 0.5, 0.03), Point(2.0, 0.7, 0.03)],
        "b": [Point(1.0, 0.45, 0.04), Point(2.0, 0.59, 0.04)],
    }
    assert not clearly(curves, "a", ["b"], 1.0)
    assert clearly(curves, "a", ["b"], 2.0)
    assert clearly(curves, "a", ["b"])
    assert not clearly(curves, "b", ["a"])
    assert clearly(curves, "b", ["a"], lower=True)
    assert not clearly(curves, "a", ["b", "a"])
    fallen = {"a": [Point(20.0, 0.12, 0.001), Point(320.0, 0.117, 0.0005)]}
    assert model_protected.falls(fallen, "a")
    assert not model_protected.falls({"a": [Point(20.0, 0.1172, 0.004), Point(320.0, 0.116, 0.004)]}, "a")


@pytest.mark.fast
def test_a_dip_that_is_noise_is_no_optimum() -> None:
    def curve(middle: float) -> dict[str, list[Point]]:
        seeds = {-1.0: (0.2, 0.3, 0.4), 1.0: (0.21 - middle, 0.29 - middle, 0.4 - middle), 2.0: (0.21, 0.3, 0.41)}
        return {"ours": [Point(x, sum(own) / 3, 0.05, own) for x, own in seeds.items()]}

    assert model_protected.dips(curve(0.1), "ours")
    assert not model_protected.dips(curve(1e-5), "ours")
    assert not model_protected.dips(curve(0.1), "ours", -1)


@pytest.mark.fast
def test_all_panels_of_a_figure_are_asked_for_by_its_name() -> None:
    assert [made.name[-2:] for made in study.asked(KNOWN, ["cross-silo/figure-3"])] == ["3a", "3b", "3c", "3d"]
    assert [made.name for made in study.asked(KNOWN, ["pmtl/figure-1"])] == ["pmtl/figure-1"]


@pytest.mark.fast
def test_the_same_seeds_are_compared_one_by_one() -> None:
    """What differs between seeds, such as how the rows were divided, is the same for both."""
    one, other = Point(6.0, 0.3, 0.1, (0.2, 0.3, 0.4)), Point(6.0, 0.32, 0.1, (0.22, 0.315, 0.425))
    assert ahead(one, other, lower=True)
    assert ahead(other, one)
    assert not ahead(one, other)
    assert not ahead(one._replace(seeds=()), other, lower=True)
    assert not ahead(one, other._replace(seeds=(0.22, 0.315)), lower=True)
    assert not ahead(one, other._replace(seeds=(0.5, 0.2, 0.26)), lower=True)


@pytest.mark.fast
@pytest.mark.parametrize("name", [f"cross-silo/figure-3{letter}" for letter in "abc"])  # of d the text says less
def test_averaging_alone_does_not_pass_for_a_personal_method(name: str) -> None:
    """Local training and FedAvg are ends of the grid: to be as good as the better of them must not be enough."""
    places = (0.5, 1.5, 6.0)
    ends = {name: [Point(x, mean, 0.001) for x in places] for name, mean in (("local", 0.5), ("FedAvg", 0.6))}
    others = dict.fromkeys(("MR-MTL", "local fine-tuning", "Ditto", "IFCA (10%)", "Mocha"), ends["FedAvg"])
    assert verdict(KNOWN[name], replace(FOUND, curves=ends | others)) == "does not hold"


@pytest.mark.fast
def test_a_page_says_how_to_run_it_again() -> None:
    record = {"item": "pmtl/figure-0", "size": "quick", "took": ""}
    assert again(record) == "Again: `kinfolk reproduce pmtl/figure-0 --quick`."
    assert again({**record, "size": "full"}) == "Again: `kinfolk reproduce pmtl/figure-0`."
    assert "full-runs.md" in again({**record, "size": "full", "took": "Measured by another study."})


@pytest.mark.fast
def test_the_command_lists_them_in_a_checkout_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.chdir(Path(study.__file__).parents[3])
    code, out, err = command("reproduce", "--json")
    assert code == 0, err
    assert '"cross-silo/figure-3b"' in out
    monkeypatch.chdir(tmp_path)
    code, _, err = command("reproduce")
    assert code == 1
    assert "come with the repository" in " ".join(err.split())
