"""Reports: numbers are those of the run directory, and nothing private is shown unasked."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import read_lines
from kinfolk.report import page_charts, pdf, write_report
from kinfolk.report.build import build
from kinfolk.report.checking import chained
from kinfolk.report.content import Chart, Items, Series, Table, Value
from kinfolk.report.page import page
from kinfolk.report.reading import Record, read
from kinfolk.training.run_directory import Run, RunError

EXTERNAL = re.compile(r"""(?:src|href|action)=["'](?!\#|data:)|@import|url\(|https?://|fetch\(|XMLHttp|import\(""")


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("client", "released", "open")]


def written(tmp_path: Path, *made: Run, **options: Any) -> str:
    return write_report([one.path for one in made], tmp_path / "report", **options).read_text()


def values(text: str) -> list[float]:
    return [float(raw) for raw in re.findall(r'data-value="([^"]+)"', text)]


class Words(HTMLParser):
    """The text of a page, and its attributes that are read aloud."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name == "aria-label" and value]

    def handle_data(self, data: str) -> None:
        self.found.append(data)


@pytest.mark.fast
def test_numbers_are_those_of_the_run_directory(trained: Any, tmp_path: Path) -> None:
    text = written(tmp_path, trained("personal"), trained("alone"), with_private=True)
    shown = values(text)
    for one in (trained("personal"), trained("alone")):
        statement = one.statement()
        for party in statement["parties"]:
            assert party["epsilon"] in shown
            assert party["delta"] in shown
        for line in one.metrics():
            assert line["loss"] in shown
        card = json.loads((one.private / "scorecard.json").read_text())
        assert {card["scores"][0][key] for key in ("value", "worst_tenth", "constant")} <= {*shown}
        for client in json.loads((one.private / "clients.json").read_text()):
            assert float(np.mean(client["value"])) in shown
            assert float(np.mean(client["constant"])) in shown
    pairs = re.findall(r'data-value="([^"]+)">([^<]+)<', text)
    assert pairs
    for raw, seen in pairs:
        if seen.endswith(" %"):
            assert 0 <= float(seen.removesuffix(" %")) - 100 * float(raw) < 0.1 + 1e-9
        else:
            assert seen == f"{float(raw):.4g}"


@pytest.mark.parametrize("name", ["personal", "alone", *SLOW[:2]])
def test_epsilon_over_rounds_comes_from_the_ledger_and_ends_at_the_statement(trained: Any, name: str) -> None:
    one = trained(name)
    found = read(one.path, False).spending
    assert found is not None
    assert found.epsilons[0] == 0
    assert list(found.epsilons) == sorted(found.epsilons)
    said = one.statement()["epsilon"]
    assert found.epsilons[-1] <= said
    assert found.epsilons[-1] == pytest.approx(said, rel=1e-3 if name == "released" else 0), (
        "a release states its promise"
    )
    middle = found.rounds[3]
    paid = [x for x in read_lines(one.public / "ledger.jsonl") if x.party == found.party and x.rounds[1] <= middle]
    (delta,) = {p["delta"] for p in one.statement()["parties"] if p["party"] == found.party}
    assert found.epsilons[3] == composition.epsilon([(x.cost, x.uses) for x in paid], delta)


@pytest.mark.slow
def test_what_else_the_rows_were_in_stays_with_their_owner(trained: Any) -> None:
    one = trained("again")
    assert {line.run for line in read_lines(one.public / "ledger.jsonl")} == {one.name}
    account = json.loads((one.private / "account.json").read_text())
    assert all(found["releases"] == [one.name] for found in account["worst"].values())
    assert "account.json" not in {path.name for path in one.public.iterdir()}


@pytest.mark.fast
def test_private_is_hidden_without_the_flag(trained: Any, tmp_path: Path) -> None:
    """Not only are the numbers absent: the directory is not even read."""
    copy = tmp_path / "copy"
    shutil.copytree(trained("personal").path, copy)
    shutil.rmtree(copy / "private")
    with_folder = page(build([read(trained("personal").path, False)], False))
    assert with_folder == page(build([read(copy, False)], False)).replace("copy", trained("personal").name)
    errors = [line["error"] for line in trained("personal").metrics()]
    (score,) = json.loads((trained("personal").private / "scorecard.json").read_text())["scores"]
    assert not {*errors, score["value"], score["constant"], score["shared"]} & {*values(with_folder)}
    assert "private/" in with_folder  # says where the rest is
    both = written(tmp_path, trained("personal"), with_private=True)
    assert "not covered either" in both


@pytest.mark.parametrize("name", ["personal", "alone", *SLOW])
def test_every_epsilon_of_a_simulation_says_so(trained: Any, tmp_path: Path, name: str) -> None:
    """In the page's own words; the verbatim statement and settings are the run's."""
    one = trained(name)
    text = re.sub(r"<pre.*?</pre>", "", written(tmp_path, one, with_private=True), flags=re.S)
    note = r'\s*<span class="note">\(simulated\)</span>'
    spent = {party["epsilon"] for party in one.statement()["parties"]} - {0.0}
    shown = list(re.finditer(r'data-value="([^"]+)">[^<]*</span>(' + note + ")?", text))
    epsilons = [m for m in shown if float(m[1]) in spent]
    labels = [words for words in Words(text).found if re.search(r"epsilon \d", words)]
    assert bool(epsilons) == (name != "open")
    if name == "released":
        assert "simulated" not in text
    else:
        assert all(m[2] for m in epsilons)
        assert all("(simulated)" in words for words in labels)


def test_one_file_that_asks_for_nothing_else(full_page: Path) -> None:
    text = full_page.read_text()
    assert not EXTERNAL.findall(text)
    assert "default-src 'none'" in text
    assert full_page.stat().st_size < 3_000_000
    charts = text.count("<figure")
    assert charts >= 6
    assert text.count("The numbers of this chart") == charts


@pytest.mark.fast
def test_a_name_cannot_become_markup(trained: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained("personal").path, copy)
    path = copy / "public" / "statement.json"
    evil = '<img src=x onerror=alert(1)>|"'
    path.write_text(path.read_text().replace('"synthetic_schools"', json.dumps(evil)))
    text = page(build([read(copy, False)], False))
    assert "<img" not in text
    assert "&lt;img" in text


def test_who_gains_needs_a_run_of_training_alone(trained: Any, tmp_path: Path) -> None:
    single = written(tmp_path, trained("personal"), with_private=True)
    assert "Give a run of method local" in single
    both = written(tmp_path, trained("personal"), trained("alone"), with_private=True)
    own, other = (read(one.path, True).errors or {} for one in (trained("personal"), trained("alone")))
    gains = sum(own[client] < other[client] for client in own)
    assert re.search(rf'Clients that gain</dt><dd><span class="number" data-value="{float(gains)}"', both)


def _value(record: Record) -> float:
    assert record.measured is not None
    return record.measured["value"]


def test_a_comparison_says_what_it_came_to_and_shows_how_sure_it_is(trained: Any) -> None:
    records = [read(trained(name).path, True) for name in ("personal", "alone", "stronger")]
    report = build(records, True)
    assert [s.anchor for s in report.sections][:3] == ["summary", "utility", "clients"], "results come first"
    (items,) = [part for part in report.sections[0].parts if isinstance(part, Items)]
    (words,) = items.items  # one budget has two methods
    best, other = sorted(records[:2], key=_value)
    raw = [word.raw for word in words if isinstance(word, Value)]
    assert raw[:2] == [best.epsilon, _value(best)]
    gain = sum(best.errors[c] < other.errors[c] for c in best.errors) if best.errors and other.errors else 0
    assert f"{gain} of 12 clients gain by it" in str(words[-1]) or best.method == "local"
    (chart,) = [part for part in report.sections[1].parts if isinstance(part, Chart)]
    spreads = [spread for series in chart.series for spread in series.spreads]
    assert sorted(spreads) == sorted(record.spread for record in records)
    assert min(spreads) > 0
    drawn = page_charts.draw(chart, page_charts.WIDE, 1)
    ends = [float(y) for y in re.findall(r'y1="([\d.]+)" x2="[\d.]+" y2="[\d.]+" class="whisker"', drawn)]
    assert len(ends) == 3
    assert max(ends) <= page_charts.WIDE.height - page_charts.WIDE.bottom


@pytest.mark.slow
def test_training_alone_is_compared_at_the_same_level_only(trained: Any, tmp_path: Path) -> None:
    text = written(tmp_path, trained("client"), trained("alone"), with_private=True)
    assert "Clients that gain" not in text


def test_a_changed_ledger_or_statement_is_noticed(trained: Any, tmp_path: Path) -> None:
    assert "do not fit together" not in written(tmp_path, trained("personal"))
    copy = tmp_path / trained("personal").name
    shutil.copytree(trained("personal").path, copy)
    ledger = copy / "public" / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    assert chained(ledger)
    ledger.write_text("".join(lines[:5] + lines[12:]))
    assert not chained(ledger)
    assert "do not fit together" in written(tmp_path, Run(copy))


def test_strengths_are_drawn_where_a_run_wrote_them(trained: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained("personal").path, copy)
    records = [{"round": n, "strength": {"first": 1.5**n, "last": 0.25 * n}} for n in range(4)]
    (copy / "public" / "strengths.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report = build([read(copy, False)], False)
    (chart,) = [part for s in report.sections if s.anchor == "strengths" for part in s.parts]
    assert isinstance(chart, Chart)
    assert [series.name for series in chart.series] == ["first", "last"]
    assert chart.series[0].points[2] == (2.0, 2.25)


def test_a_large_federation_fits(trained: Any, tmp_path: Path) -> None:
    """Two thousand clients and five runs: still under 3 MB."""
    made = []
    for number, one in enumerate([trained("personal")] * 4 + [trained("alone")]):
        copy = tmp_path / f"many-{number}"
        shutil.copytree(one.path, copy)
        statement = json.loads((copy / "public" / "statement.json").read_text())
        party = statement["parties"][0]
        statement["parties"] = [party | {"party": f"client-{k:05d}"} for k in range(2000)]
        (copy / "public" / "statement.json").write_text(json.dumps(statement))
        rows = [{"client": f"client-{k:05d}", "error": [k / 7 + number], "loss": [0.1]} for k in range(2000)]
        (copy / "private" / "clients.json").write_text(json.dumps(rows))
        made.append(Run(copy))
    text = written(tmp_path, *made, with_private=True)
    assert len(text) < 3_000_000
    assert "of 2000 clients are drawn" in text


def test_why_the_method_was_chosen_is_said(trained: Any, tmp_path: Path) -> None:
    text = written(tmp_path, trained("personal"), format="md")
    assert re.search(r"Chosen from public numbers: method=\S+ was picked: theory expects", text)


def test_markdown_has_the_same_numbers(trained: Any, tmp_path: Path) -> None:
    text = written(tmp_path, trained("personal"), trained("alone"), with_private=True, format="md")
    statement = trained("personal").statement()
    assert f"{statement['epsilon']:.4g} (simulated)" in text
    (score,) = json.loads((trained("personal").private / "scorecard.json").read_text())["scores"]
    assert f"{score['value']:.4g}" in text
    assert "constant (own m" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 50
    assert "<" not in re.sub(r"\\<|```.*?```", "", text, flags=re.S)


def test_errors_name_the_remedy(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        read(tmp_path, False)
    copy = tmp_path / "copy"
    shutil.copytree(trained("personal").path, copy)
    (copy / "public" / "statement.json").unlink()
    with pytest.raises(RunError, match="--resume"):
        read(copy, False)
    with pytest.raises(ValueError, match="format='docx'"):
        write_report([trained("personal").path], tmp_path / "x", format="docx")
    monkeypatch.setenv("KINFOLK_CHROMIUM", "no-such-browser")
    with pytest.raises(ValueError, match="apt install chromium"):
        pdf.printed("")


def test_pictures_are_written_by_one_module() -> None:
    source = Path(page_charts.__file__).parents[1]
    element = re.compile(r"<(?:svg|line|rect|circle|path|polyline|polygon|text|g)[ >]")
    writers = [path.name for path in source.rglob("*.py") if element.search(path.read_text())]
    assert writers == ["svg.py"], "its doctest shows one; the others call it"


def test_few_clients_are_named_and_have_bars_of_their_own() -> None:
    names = ("Lyon University Hospital", "Oslo", "Turku <3>")
    series = tuple(
        Series(run, tuple((k + 1.0, 0.1 * (k + 1)) for k in range(3)), names, "bars") for run in ("alone", "together")
    )
    chart = Chart("Errors", "", "client", "error", series, Table("", ("a",), ()), names=names)
    for frame in (page_charts.WIDE, page_charts.NARROW):
        drawn = page_charts.draw(chart, frame, 1)
        assert "Oslo" in drawn
        assert "Lyon Universit\u2026" in drawn or "Lyon Univ\u2026" in drawn
        assert "Turku &lt;3&gt;" in drawn
        assert ">1.5<" not in drawn
        assert drawn.count('class="stem"') == 2
        places = [float(x) for x in re.findall(r'class="point"[^>]*translate\(([\d.]+),', drawn)]
        assert len(set(places)) == 6, "no bar stands on another"
        assert max(places) < frame.width
