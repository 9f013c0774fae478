"""The pages, as HTML without a script: forms, tables and what commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from kinfolk.app.jobs import Job
from kinfolk.app.steps import Project, tables
from kinfolk.data.tables.schema import KINDS, Column, Schema

STEPS = (
    ("", "Tables"),
    ("schema", "Schema"),
    ("compare", "What a budget gains"),
    ("release", "Release"),
    ("reports", "Reports"),
)
"""Address and title of every step."""


def page(title: str, body: str, here: str, *, busy: bool = False) -> str:
    """A whole page. `here`: its address. `busy`: it looks again every two seconds."""
    sheets = (("kinfolk.report", "page.css"), ("kinfolk.app", "app.css"))
    style = "".join(files(package).joinpath(name).read_text() for package, name in sheets)
    links = "".join(
        f'<li><a href="./{address}"{" aria-current=page" if address == here else ""}>{number}. {escape(name)}</a></li>'
        for number, (address, name) in enumerate(STEPS, 1)
    )
    again = '<meta http-equiv="refresh" content="2">' if busy else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{again}<link rel="icon" href="data:,">
<title>{escape(title)} - kinfolk</title>
<style>
{style}</style>
</head>
<body class="app">
<a class="skip" href="#main">Skip to the content</a>
<header>
<p class="badge release">on this machine only</p>
<h1>{escape(title)}</h1>
<nav aria-label="Steps"><ul>{links}</ul></nav>
</header>
<main id="main">
{body}</main>
</body>
</html>
"""


def error(message: str) -> str:
    """What was wrong."""
    return f'<p class="warn" role="alert">{escape(message)}</p>' if message else ""


def form(action: str, content: str, button: str) -> str:
    """A form with one button."""
    pressed = f'<p><button type="submit">{escape(button)}</button></p>'
    return f'<form method="post" action="./{action}">{content}{pressed}</form>'


def field(name: str, label: str, value: str = "", about: str = "", *, required: bool = False) -> str:
    """A line to fill in."""
    must = " required" if required else ""
    note = f'<span class="small">{escape(about)}</span>' if about else ""
    given = f'<input name="{escape(name)}" value="{escape(value)}" autocomplete="off"{must}>'
    return f"<p><label>{escape(label)} {given}</label> {note}</p>"


def tick(name: str, label: str, value: str = "yes", *, ticked: bool = False) -> str:
    """A box to tick."""
    mark = " checked" if ticked else ""
    box = f'<input type="checkbox" name="{escape(name)}" value="{escape(value)}"{mark}>'
    return f"<p><label>{box} {escape(label)}</label></p>"


def select(name: str, label: str, options: Iterable[tuple[str, str]], chosen: str = "") -> str:
    """One of several."""
    lines = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(words)}</option>'
        for value, words in options
    )
    return f'<label>{escape(label)} <select name="{escape(name)}">{lines}</select></label>'


def choose(project: Project, message: str = "") -> str:
    """The first step: tables, then what is to be predicted from them."""
    found = tables(project.folder)
    place = f"<code>{escape(str(project.folder))}</code>"
    body = f"<p class=lead>Tables in {place}. They stay where they are.</p>{error(message)}"
    if not found:
        body += "<p>There is none: put CSV, Parquet or Arrow files there, one for each client or all in one.</p>"
        return page("Choose tables", body, "")
    boxes = "".join(tick("file", name, name, ticked=name in project.files) for name in found)
    body += form("tables", f"<fieldset><legend>Tables</legend>{boxes}</fieldset>", "These tables")
    if project.columns:
        names = [(name, name) for name in project.columns]
        target = select("target", "Predict", [("", "choose a column"), *names], project.target)
        client = select("client", "Whose row it is", [("", "every file is one client"), *names], project.client)
        body += form("draft", f"<p>{target}</p><p>{client}</p>", "Draft a schema")
    return page("Choose tables", body, "")


def confirm(schema: Schema | None, message: str = "") -> str:
    """The second step: what the columns are."""
    if schema is None:
        body = f'{error(message)}<p>There is no schema yet: <a href="./">choose tables</a> and let one be drafted.</p>'
        return page("Confirm the schema", body, "schema")
    open_ = schema.unconfirmed()
    lead = (
        f"{len(open_)} columns hold guesses from the rows: put in what is known without looking, and tick them."
        if open_
        else "All columns are confirmed: bounds, kinds and values count as public."
    )
    rows = "".join(_column(column, k, k == 0) for k, column in enumerate((schema.target, *schema.columns)))
    name = field("name", "What you call these data, in every table and year", schema.name or "")
    body = f"<p class=lead>{escape(lead)}</p>{error(message)}" + form("confirm", rows + name, "Save")
    return page("Confirm the schema", body, "schema")


def _column(column: Column, place: int, target: bool) -> str:
    kinds = [(kind, kind.replace("_", " or ")) for kind in KINDS]
    low, high = ("" if value is None else f"{value:g}" for value in (column.low, column.high))
    values = escape("\n".join(column.values))
    return (
        f"<fieldset><legend>{escape(column.name)}{' (to predict)' if target else ''}</legend>"
        f"<p>{select(f'kind.{place}', 'Kind', kinds, column.kind)}</p>"
        + field(f"low.{place}", "At least", low)
        + field(f"high.{place}", "At most", high)
        + f'<p><label>Values, one in a line <textarea name="values.{place}" rows="{len(column.values) or 1}">{values}'
        + "</textarea></label></p>"
        + tick(f"confirmed.{place}", "known without looking at the rows", ticked=column.confirmed)
        + "</fieldset>"
    )


def gains(project: Project, message: str = "") -> str:
    """The third step: what budgets would give, in simulation."""
    about = "Simulations: each budget is tried with training alone, one model for all, and a model each. "
    about += "They cost nothing, and their results are for you alone: they are not protected."
    body = f"<p class=lead>{escape(about)}</p>{error(message)}"
    body += form("try", field("epsilon", "Budgets (epsilon)", "1 3 8", required=True), "Compare")
    body += form("account", "", "What was spent so far")
    body += _links("Comparisons", [(f"runs/{name}", name) for name in reversed(project.comparisons)])
    return page("What a budget gains", body, "compare")


def spend(project: Project, schema: Schema | None, message: str = "") -> str:
    """The fourth step: a release."""
    about = "A release is trained with noise from the operating system and charged to your account before it begins. "
    about += "What is refused here is refused everywhere: there is no way round from this page."
    content = (
        field("name", "What you call these data", (schema.name if schema else "") or "", required=True)
        + field("epsilon", "Budget of this release (epsilon)", required=True)
        + field("promise", "Of all releases of these rows, ever", about="empty: this one is the only one")
        + field(
            "disjoint", "Why nobody in these data is in other data of your account", about="asked once for a new name"
        )
        + tick("spend", "Spend it. Nobody can take it back.")
    )
    return page(
        "Release", f"<p class=lead>{escape(about)}</p>{error(message)}" + form("spend", content, "Release"), "release"
    )


def reports(project: Project, written: Sequence[tuple[str, str]], message: str = "") -> str:
    """The fifth step: what there is to read."""
    runs = [(name, name) for name in reversed(project.runs)]
    body = error(message)
    if not runs:
        return page("Reports", body + "<p>There is no run yet.</p>", "reports")
    private = tick("private", "With private numbers: errors, client by client. For those who may see them.")
    body += form("report", f"<p>{select('run', 'Run', runs)}</p>{private}", "Write a report")
    return page("Reports", body + _links("Written", written), "reports")


def _links(title: str, links: Sequence[tuple[str, str]]) -> str:
    if not links:
        return ""
    lines = "".join(f'<li><a href="./{escape(address)}">{escape(name)}</a></li>' for address, name in links)
    return f"<h2>{escape(title)}</h2><ul>{lines}</ul>"


def job(found: Job | None, then: tuple[str, str]) -> str:
    """A command: what it is, what it prints, how it ended. `then`: address and title of where to go on."""
    if found is None:
        return page("Nothing runs", "<p>No command was started yet.</p>", "job")
    end = {None: "It is running. This page looks again every two seconds.", 0: "It has ended."}.get(
        found.code, "It was refused or has failed: what it says is below."
    )
    tone = "lead" if found.code in (None, 0) else "warn"
    body = f'<p class="{tone}" role="status">{escape(end)}</p><p class="small">The same at a prompt:</p>'
    body += f"<pre tabindex=0><code>{escape(found.shown)}</code></pre>"
    body += f'<pre class=output tabindex=0 aria-label="Output"><code>{escape(found.output) or "..."}</code></pre>'
    if found.running:
        body += form("stop", "", "Stop")
    else:
        body += f'<p><a href="./{then[0]}">{escape(then[1])}</a></p>'
    return page("Running" if found.running else "Done", body, "job", busy=found.running)
