"""A report as Markdown text; charts become the tables of their numbers."""

from __future__ import annotations

from kinfolk.report.content import Chart, Code, Details, Facts, Items, Paragraph, Part, Report, Table, Value


def markdown(report: Report) -> str:
    """The whole report."""
    blocks = [f"# {_plain(report.title)}", f"{_plain(report.subtitle)} ({report.label})"]
    for section in report.sections:
        blocks.append(f"## {section.title}")
        blocks += [_part(part) for part in section.parts]
    return "\n\n".join(blocks) + "\n"


def _part(part: Part) -> str:
    if isinstance(part, Paragraph):
        text = "".join(_text(word) for word in part.words)
        return f"> {text}" if part.tone == "warn" else text
    if isinstance(part, Items):
        return "\n".join("* " + "".join(_text(word) for word in item) for item in part.items)
    if isinstance(part, Code):
        fence = "`" * max(3, 1 + max((len(run) for run in part.text.split("\n") if set(run) == {"`"}), default=0))
        return f"{fence}\n{part.text.rstrip()}\n{fence}"
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Facts):
        return "\n".join(f"* {name}: {_text(value)}" for name, value in part.pairs)
    if isinstance(part, Details):
        return "\n\n".join([f"### {_plain(part.summary)}", *(_part(inner) for inner in part.parts)])
    return _chart(part)


def _chart(chart: Chart) -> str:
    return f"### {_plain(chart.title)}\n\n{_plain(chart.summary)}\n\n{_table(chart.table)}"


def _table(table: Table) -> str:
    width = max(len(row) for row in (table.header, *table.rows))
    rows = [table.header, ("---",) * width, *table.rows]
    lines = ("| " + " | ".join(str(cell) if cell == "---" else _text(cell) for cell in row) + " |" for row in rows)
    return f"{_plain(table.caption)}:\n\n" + "\n".join(lines)


def _text(word: str | Value) -> str:
    return _plain(word) if isinstance(word, str) else str(word)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    for mark in "\\`*_<>|[]#":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split("\n"))
