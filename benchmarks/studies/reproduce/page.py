"""The pages: one for every paper, with a section for every table and figure, and an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.studies.reproduce.records import PAPERS, Item, Measured, comparisons, verdict
from kinfolk.report import line_chart

MOST_COLUMNS = 9


def of_record(record: dict[str, Any]) -> Measured:
    """What a results file says was measured."""
    curves = {name: [(p[0], p[1], p[2]) for p in points] for name, points in record["curves"].items()}
    rest = {key: record[key] for key in ("data", "seeds", "budget", "stand_in", "note", "took")}
    return Measured(curves=curves, **rest)


def sentence(item: Item, measured: Measured | None) -> str:
    """One sentence for the index."""
    if item.measure is None:
        return item.shows
    if measured is None:
        return "Not run yet."
    if measured.stand_in:
        return f"Ran on {measured.data}, which says nothing about the paper."
    failed = [claim.says for claim in item.claims if not claim.holds(measured.curves)]
    if failed:
        return f"Not so here: {'; '.join(failed)}."
    return f"So here too: {'; '.join(claim.says for claim in item.claims)}."


def picture(item: Item, measured: Measured) -> str:
    """The curves, ours; the paper's numbers as points where they are known."""
    marks = {f"paper: {row.what}": (row.x, row.value) for row in item.printed} if len(item.printed) <= 4 else {}
    positive = all(x > 0 for points in measured.curves.values() for x, _, _ in points)
    return line_chart.lines(
        f"{item.name}: {item.title}",
        {name: [(x, mean) for x, mean, _ in points] for name, points in measured.curves.items()},
        item.across,
        item.up,
        log_across=item.log_across and positive,
        marks=marks,
    )


def page(paper: str, items: Iterable[Item], records: Mapping[str, dict[str, Any]]) -> str:
    """A paper's page in Markdown."""
    head = f"# {paper}: item by item\n\n{PAPERS[paper]}. What verdicts mean is said in the [index](index.md).\n"
    return "\n".join([head, *(section(item, records.get(item.name)) for item in items if item.paper == paper)])


def section(item: Item, record: dict[str, Any] | None) -> str:
    """A table's or figure's part of the page."""
    measured = None if record is None else of_record(record)
    lines = [f"## {item.name}: {item.title} {{#{item.anchor}}}", ""]
    lines += [f"**Verdict: {verdict(item, measured)}.** {sentence(item, measured)}", ""]
    if measured is None or record is None:
        return "\n".join(lines)
    lines += [f"The paper: {item.shows}", "", f"![{item.title}]({item.paper}-{item.anchor}.svg)", ""]
    lines += [*claims(item, measured), item.read, "", *beside(item, measured), *table(item, measured)]
    lines += [
        f"Data: {measured.data}. Seeds or repetitions: {measured.seeds}. Setting: {measured.budget}.",
        f"{measured.took or took(record)} {measured.note}".rstrip(),
        f"Again: `kinfolk reproduce {item.name}`.",
        "",
    ]
    return "\n".join(lines)


def took(record: dict[str, Any]) -> str:
    return f"{record['seconds']:.0f} CPU seconds ({record['size']}, {record['device']})."


def claims(item: Item, measured: Measured) -> list[str]:
    if measured.stand_in:
        return ["A stand-in: what it gives is not compared with the paper's statements.", ""]
    rows = [f"| {claim.says} | {'yes' if claim.holds(measured.curves) else 'no'} |" for claim in item.claims]
    return ["| what the paper says | here |", "|---|---|", *rows, ""]


def beside(item: Item, measured: Measured) -> list[str]:
    """The paper's numbers beside ours."""
    rows = comparisons(item, measured.curves)
    if not rows or measured.stand_in:
        return []
    lines = ["| | at | paper | here (standard error) | tolerance | within |", "|---|---|---|---|---|---|"]
    for printed, mean, error, near in rows:
        cells = (printed.what, f"{printed.x:g}", f"{printed.value:g}", f"{mean:.4g} ({error:.2g})")
        lines.append(f"| {' | '.join(cells)} | {printed.tolerance:g} | {'yes' if near else 'no'} |")
    return [*lines, ""]


def table(item: Item, measured: Measured) -> list[str]:
    """All curves: means, and standard errors where there are several seeds."""
    places = sorted({x for points in measured.curves.values() for x, _, _ in points})
    if len(places) > MOST_COLUMNS:
        step = len(places) / MOST_COLUMNS
        places = [places[int(n * step)] for n in range(MOST_COLUMNS)]
    lines = [f"| {item.up} at {item.across} | " + " | ".join(f"{x:.4g}" for x in places) + " |"]
    lines.append("|---|" + "---|" * len(places))
    for name, points in measured.curves.items():
        found = {x: f"{mean:.4g}" + (f" ({error:.1g})" if error else "") for x, mean, error in points}
        lines.append(f"| {name} | " + " | ".join(found.get(x, "") for x in places) + " |")
    return [*lines, ""]


INDEX = """# Every table and figure of the papers

`kinfolk reproduce` lists them, `kinfolk reproduce NAME` runs one and writes its page, `--quick` in a minute or two, in
a checkout of the repository. A verdict follows from what was measured: *holds* (the paper's statements, and its printed
numbers within the tolerance), *holds in shape* (its statements, where numbers cannot be read from the text or come from
other samples), *does not hold*, or *cannot be had here* (the data: a made stand-in runs the code, and says nothing).
Where epsilon is 100, that is training without privacy. Strengths are the best of a grid on test data, as in the papers.
"""


def index(items: list[Item], records: dict[str, dict[str, Any]]) -> str:
    """The index page: item, verdict, one sentence."""
    lines = [INDEX]
    for paper, words in PAPERS.items():
        lines += [f"## {words}", "", "| | what | verdict | |", "|---|---|---|---|"]
        for item in items:
            if item.paper == paper:
                record = records.get(item.name)
                measured = None if record is None else of_record(record)
                link = f"[{item.anchor}]({paper}.md#{item.anchor})"
                lines.append(f"| {link} | {item.title} | {verdict(item, measured)} | {sentence(item, measured)} |")
        lines.append("")
    return "\n".join(lines)
