"""The pages: one for every paper, with a section for every table and figure, and an index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from benchmarks.studies.reproduce.files import of_record
from benchmarks.studies.reproduce.records import PAPERS, Curves, Item, Measured, Printed, comparisons, verdict, within
from kinfolk.report import dot_chart, line_chart

MOST_COLUMNS = 9


def sentence(item: Item, measured: Measured | None) -> str:
    """One sentence for the index."""
    if item.measure is None:
        return item.shows
    if measured is None:
        return "Not run yet."
    if measured.stand_in:
        return f"Ran on {measured.data}, which says nothing about the paper."
    failed = [claim.says for claim in item.claims if not claim.holds(measured.curves)]
    told = f"Not so here: {'; '.join(failed)}." if failed else f"So here too: {'; '.join(c.says for c in item.claims)}."
    parts = (told, within(item, measured.curves), ends(measured), measured.note)
    return " ".join(part for part in parts if part)


def ends(measured: Measured) -> str:
    """Which methods are best as one of the two that they lie between: what is said of them is said of that one."""
    found = {name: {strength for _, strength, _ in rows} for name, rows in measured.strengths.items()}
    alike = {name: " or ".join(map(words, sorted(own))) for name, own in found.items() if own <= {0.0, math.inf}}
    return " ".join(f"{name} is best with strength {strengths}." for name, strengths in alike.items())


def words(strength: float) -> str:
    """A strength as a person would write it."""
    return "infinite" if math.isinf(strength) else f"{strength:g}"


def picture(item: Item, measured: Measured) -> str:
    """Our curves, and the paper's numbers beside them, dashed and hollow, where they are known."""
    curves, drawn = measured.curves, {name: [p[:3] for p in points] for name, points in measured.curves.items()}
    title = f"{item.name}: {item.title}" + (" - ours: a stand-in" if measured.stand_in else "")
    places = {point.x for points in curves.values() for point in points} | {row.x for row in item.printed}
    if len(places) == 1:
        ours = {name: (points[0].mean, points[0].error) for name, points in curves.items()}
        along = f"{item.up} at {item.across} {place(item, *places)}" if item.across else item.up
        return dot_chart.dots(title, ours, along, {row.curve: row.value for row in item.printed})
    axes = line_chart.Axes(item.across, item.log_across and min(places) > 0, item.log_up, item.names, "standard error")
    if item.panels:
        ours = {
            part: {of_part(name, part): p for name, p in drawn.items() if of_part(name, part)} for part in item.panels
        }
        own = {part: [row for row in item.printed if of_part(row.curve, part)] for part in item.panels}
        beside = {
            part: theirs([replace(r, curve=of_part(r.curve, part)) for r in rows], curves) for part, rows in own.items()
        }
        return line_chart.panels(title, ours, axes, beside)
    return line_chart.chart(title, drawn, item.up, axes, theirs(item.printed, curves))


def of_part(name: str, part: str) -> str:
    """What a curve called `NAME: PART` is called in the panel of its part; empty: it is not in it."""
    return name.removesuffix(f": {part}") if name.endswith(f": {part}") else ""


def theirs(printed: Iterable[Printed], curves: Curves) -> list[line_chart.Others]:
    """The paper's numbers, curve by curve; those that are only bounds say so.

    They are joined where at most one point of ours lies between two of them.
    """
    found: dict[tuple[str, str], list[Printed]] = {}
    for row in printed:
        found.setdefault((row.curve, f"{row.bound} {row.value:g}" if row.bound else ""), []).append(row)
    ours = sorted({point.x for points in curves.values() for point in points})
    return [
        line_chart.Others(
            f"paper: {curve} {bound}".strip(),
            curve,
            [(row.x, row.value, row.spread) for row in rows],
            all(sum(a.x < x < b.x for x in ours) <= 1 for a, b in pairwise(rows)),
        )
        for (curve, bound), rows in found.items()
    ]


def page(paper: str, items: Iterable[Item], records: Mapping[str, dict[str, Any]]) -> str:
    """A paper's page in Markdown."""
    head = f"# {paper}: item by item\n\n{PAPERS[paper]}. What verdicts mean is said in the [index](index.md).\n"
    return "\n".join([head, *(section(item, records.get(item.name)) for item in items if item.paper == paper)])


def section(item: Item, record: dict[str, Any] | None) -> str:
    """A table's or figure's part of the page."""
    measured = None if record is None else of_record(record)
    lines = [f"## {item.name}: {item.title} {{#{item.anchor}}}", ""]
    summary = sentence(item, measured)
    lines += [f"**Verdict: {verdict(item, measured)}.** {summary}", ""]
    if measured is None or record is None:
        return "\n".join(lines)
    lines += [f"The paper: {item.shows}", "", f"![{item.title}]({item.paper}-{item.anchor}.svg)", ""]
    lines += [*claims(item, measured), item.read, "", *beside(item, measured), *table(item, measured)]
    lines += [
        f"Data: {measured.data}. Seeds or repetitions: {measured.seeds}. Setting: {measured.budget}.",
        took(record),
        again(record),
        "",
    ]
    return "\n".join(lines)


def again(record: dict[str, Any]) -> str:
    """How to run it again."""
    if record["took"]:
        return "Again: as [full runs](full-runs.md) says; `--quick` for the small setting."
    return f"Again: `kinfolk reproduce {record['item']}{' --quick' if record['size'] == 'quick' else ''}`."


def took(record: dict[str, Any]) -> str:
    """Which run the page shows, and how long it and the quick one took."""
    spent = f"{record['seconds']:.0f} CPU seconds on {record['device']}"
    if record["size"] == "quick":
        return f"A quick run, not the paper's setting: {spent}."
    quick = record["quick_seconds"]
    also = "" if quick is None else f" The quick run takes {quick:.0f} CPU seconds."
    return f"{record['took'] or f'The full run: {spent}.'}{also}"


def ran(record: dict[str, Any] | None) -> str:
    """Which run the index speaks of."""
    if record is None:
        return ""
    return "quick, a stand-in" if record["stand_in"] else f"{record['size']}, {record['machine'] or record['device']}"


def claims(item: Item, measured: Measured) -> list[str]:
    if measured.stand_in:
        return ["A stand-in: what it gives is not compared with the paper's statements.", ""]
    rows = [f"| {claim.says} | {'yes' if claim.holds(measured.curves) else 'no'} |" for claim in item.claims]
    return ["| the paper's statement, as it was tried | here |", "|---|---|", *rows, ""]


def beside(item: Item, measured: Measured) -> list[str]:
    """The paper's numbers beside ours."""
    rows = comparisons(item, measured.curves)
    if not rows:
        return []
    lines = ["| | at | paper | here (standard error) | tolerance | within |", "|---|---|---|---|---|---|"]
    for row in rows:
        printed = row.printed
        said = f"{printed.words} ({printed.source})" if printed.source else printed.words
        ours = "not measured" if row.mean is None else f"{row.mean:.4g} ({row.error:.2g})"
        ours = "a stand-in: not compared" if measured.stand_in else ours
        within = "" if measured.stand_in or row.mean is None else "yes" if row.agrees else "no"
        cells = (printed.what, place(item, printed.x), said, ours, f"{printed.tolerance:g}", within)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def place(item: Item, x: float) -> str:
    """What stands at a place across: a number, or words for it."""
    return item.names.get(x, f"{x:.4g}")


def table(item: Item, measured: Measured) -> list[str]:
    """All curves: means, and standard errors where there are several seeds; and the strengths that were best."""
    places = sorted({point.x for points in measured.curves.values() for point in points})
    if len(places) > MOST_COLUMNS:
        step = (len(places) - 1) / (MOST_COLUMNS - 1)
        places = [places[round(n * step)] for n in range(MOST_COLUMNS)]
    head = " | ".join(place(item, x) for x in places)
    lines = [f"| {item.up} at {item.across} | {head} |", "|---|" + "---|" * len(places)]
    for name, points in measured.curves.items():
        found = {x: f"{mean:.4g}" + (f" ({error:.1g})" if error else "") for x, mean, error, _ in points}
        lines.append(f"| {name} | " + " | ".join(found.get(x, "") for x in places) + " |")
    for name, rows in measured.strengths.items():
        best = {x: words(strength) + ("" if inside else " (edge)") for x, strength, inside in rows}
        lines.append(f"| best strength, {name} | " + " | ".join(best.get(x, "") for x in places) + " |")
    return [*lines, ""]


INDEX = """# Every table and figure of the papers

`kinfolk reproduce` lists them, `kinfolk reproduce NAME` runs one and writes its page, with `--quick` in a small
setting, in a checkout of the repository. A verdict follows from what was measured: *holds* (the paper's statements, and
its printed numbers within the tolerance), *holds in shape* (its statements; it prints no numbers, or some are not
within the tolerance), *does not hold* (a statement), or *cannot be had here* (the data: a made stand-in runs the code,
and says nothing). Statements are the papers', made such that numbers can decide them: thresholds are ours, "better" is
by more than two standard errors (of differences seed by seed, where they are known), and what follows from accounting
or a lemma alone is marked, as is what the paper does not state (ours). Where there is no number, the paper's curve is
in its figure only, and none was guessed.
Strengths are the best of a grid in hindsight, on test data, unless a page says otherwise (the first two papers chose by
validation or cross-validation). Grids go from 0, training alone, to infinity, averaging, unless a page says otherwise,
so that to be no worse than these is no achievement; *edge* marks a best one at an end of a smaller grid.

Figures and tables of the first paper have the journal's numbers; the longer version's figure 1 is a drawing.

A *full* run is the paper's setting, or as near as data allow; a *quick* one is small, so a verdict on it is about that
small setting. `kinfolk reproduce --all --quick`, once through with nothing compiled before, took 8 minutes 20 seconds
on two quiet cores, with a stand-in for CIFAR-10 (its images: some two minutes more). The column `quick` has CPU
seconds of each item, {seconds:.0f} in all; four items of pmtl share the run of figure-3b, and figure-3d has CIFAR-10's
images.
Full runs of FEMNIST, MNIST, CIFAR-10 and School were done on an H200: [how](full-runs.md), and what each left out.
"""


def index(items: list[Item], records: dict[str, dict[str, Any]]) -> str:
    """The index page: item, which run, verdict, one sentence."""
    spent = {name: record["quick_seconds"] for name, record in records.items() if record["quick_seconds"] is not None}
    lines = [INDEX.format(seconds=sum(spent.values()))]
    for paper, words in PAPERS.items():
        lines += [f"## {words}", "", "| | what | run | quick, CPU s | verdict | |", "|---|---|---|---|---|---|"]
        for item in items:
            if item.paper == paper:
                record = records.get(item.name)
                measured = None if record is None else of_record(record)
                quick = f"{spent[item.name]:.0f}" if item.name in spent else ""
                cells = (f"[{item.anchor}]({paper}.md#{item.anchor})", item.title, ran(record), quick)
                rest = (verdict(item, measured), sentence(item, measured))
                lines.append(f"| {' | '.join((*cells, *rest))} |")
        lines.append("")
    return "\n".join(lines)
