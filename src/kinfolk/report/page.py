"""A report as one HTML file that needs nothing else: style, script and drawings are inside."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from itertools import count

from kinfolk.report import page_charts
from kinfolk.report.content import (
    Chart,
    Code,
    Details,
    Facts,
    Items,
    Paragraph,
    Part,
    Report,
    Section,
    Table,
    Value,
    Words,
)

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
"""What the browser may load: nothing but the page itself."""


def page(report: Report) -> str:
    """The whole page."""
    style, script = (files("kinfolk.report").joinpath(name).read_text() for name in ("page.css", "page.js"))
    numbers = count(1)
    links = "".join(f'<li><a href="#{s.anchor}">{escape(s.title)}</a></li>' for s in report.sections)
    body = "".join(_section(section, numbers) for section in report.sections)
    kind = "release" if report.label == "release" else "caution"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="kinfolk">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{escape(report.title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header>
<p class="badge {kind}">{escape(report.label)}</p>
<h1>{_breakable(report.title)}</h1>
<p class="subtitle">{escape(report.subtitle)}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main id="main">
{body}</main>
<footer><p>Written by kinfolk from the run directory. Every epsilon comes from the ledger.</p></footer>
<script>
{script}</script>
</body>
</html>
"""


def _section(section: Section, numbers: count) -> str:
    parts = "\n".join(_part(part, numbers) for part in section.parts)
    return (
        f'<section id="{section.anchor}" aria-labelledby="{section.anchor}-title">\n'
        f'<h2 id="{section.anchor}-title">{escape(section.title)}</h2>\n{parts}\n</section>\n'
    )


def _part(part: Part, numbers: count) -> str:
    if isinstance(part, Paragraph):
        return f'<p class="{part.tone}">{_words(part.words)}</p>'
    if isinstance(part, Items):
        return "<ul>" + "".join(f"<li>{_words(item)}</li>" for item in part.items) + "</ul>"
    if isinstance(part, Code):
        return f'<pre tabindex="0"><code>{escape(part.text)}</code></pre>'
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Facts):
        pairs = "".join(f"<div><dt>{escape(name)}</dt><dd>{_value(value)}</dd></div>" for name, value in part.pairs)
        return f'<dl class="facts">{pairs}</dl>'
    if isinstance(part, Details):
        inside = "\n".join(_part(inner, numbers) for inner in part.parts)
        kind = ' class="printed"' if part.printed else ""
        return f"<details{kind}><summary>{escape(part.summary)}</summary>\n{inside}\n</details>"
    return _chart(part, next(numbers))


def _words(words: Words) -> str:
    return "".join(_value(word) for word in words)


def _value(value: str | Value) -> str:
    if isinstance(value, str):
        return _breakable(value)
    note = f' <span class="note">({escape(value.note)})</span>' if value.note else ""
    return f'<span class="number" data-value="{value.raw!r}">{escape(value.text)}</span>{note}'


def _breakable(text: str) -> str:
    """Text whose long names may be broken after their joints."""
    return escape(text).replace("_", "_<wbr>")


def _table(table: Table) -> str:
    titled = any(table.header)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    head = f"<thead><tr>{head}</tr></thead>" if titled else ""
    names = table.header if titled else [""] * 99
    rows = "".join(f"<tr>{''.join(_cell(cell, k, names[k]) for k, cell in enumerate(row))}</tr>" for row in table.rows)
    kind = ' class="stack"' if titled and len(table.header) > 2 else ""  # on a phone, a row is a list
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}"><table{kind}>'
        f"<caption>{escape(table.caption)}</caption>{head}<tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: str | Value, place: int, name: str) -> str:
    if place == 0 and isinstance(cell, str):
        return f'<th scope="row">{_breakable(cell)}</th>'
    named = f' data-name="{escape(name)}"' if name else ""
    return f"<td{named}>{_value(cell)}</td>"


def _chart(chart: Chart, number: int) -> str:
    buttons = "".join(
        f'<li><button type="button" aria-pressed="{str(place < page_charts.MARKS).lower()}" data-series="{place}">'
        f"{page_charts.sample(place)}<span>{escape(series.name)}</span></button></li>"
        for place, series in enumerate(chart.series)
    )
    drawings = page_charts.draw(chart, page_charts.WIDE, number) + page_charts.draw(chart, page_charts.NARROW, number)
    return (
        f'<figure class="chart" aria-labelledby="chart-{number}-title">'
        f'<figcaption><h3 id="chart-{number}-title">{escape(chart.title)}</h3>'
        f"<p>{escape(chart.summary)}</p></figcaption>"
        f'<ul class="legend" aria-label="Series of this chart; press to hide or show">{buttons}</ul>'
        f'<p class="upward" aria-hidden="true">{escape(chart.y_label)}</p>'
        f'<div class="plot">{drawings}<p class="tip" hidden></p></div>'
        f'<p class="read" role="status"></p>'
        f"<details><summary>The numbers of this chart</summary>{_table(chart.table)}</details></figure>"
    )
