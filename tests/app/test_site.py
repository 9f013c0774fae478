"""The pages: who gets in, what they run, and that nothing is let through that the command line refuses."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="pip install 'kinfolk[app]'")

import httpx

from kinfolk.app import steps
from kinfolk.app.site import Site, serve
from kinfolk.app.steps import Project
from kinfolk.data.federation import DataError
from kinfolk.data.tables import schema as schemas


def write_tables(folder: Path, rows: int = 40) -> None:
    generator = np.random.default_rng(0)
    for place in ("lyon", "oslo"):
        age, ill = generator.uniform(20, 90, rows), generator.random(rows) < 0.5
        lines = [f"{a:.1f},{'yes' if i else 'no'}" for a, i in zip(age, ill, strict=True)]
        (folder / f"{place}.csv").write_text("\n".join(["age,ill", *lines]) + "\n")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The pages, served on loopback as the command serves them."""
    write_tables(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    found, up, stop = Site(tmp_path, port), threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(found, port, up.set, stop.is_set), daemon=True)
    thread.start()
    assert up.wait(30)
    yield found
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def client(site: Site) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site.address, follow_redirects=True, trust_env=False) as found:
        yield found


def done(site: Site) -> str:
    """What the last command printed, when it has ended."""
    assert site.jobs.last is not None
    site.jobs.last.wait(120)
    return site.jobs.last.output


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/schema", "//", "/%2e%2e/", "/" + "x" * 32 + "/job"])
def test_nobody_gets_in_without_the_secret(site: Site, path: str) -> None:
    with httpx.Client(base_url=site.address.replace(site.secret + "/", ""), trust_env=False) as client:
        for answer in (client.get(path), client.post(path)):
            assert answer.status_code == 404
            assert "kinfolk" not in answer.text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost", "x"])
def test_a_page_from_elsewhere_cannot_ask_in_our_stead(site: Site, client: httpx.Client, host: str) -> None:
    """A name that somebody makes point to this machine is not this machine."""
    assert client.get("", headers={"host": host}).status_code == 403
    assert client.post("spend", headers={"host": host}).status_code == 403


def test_pages_load_nothing_and_are_kept_nowhere(client: httpx.Client) -> None:
    answer = client.get("")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "<script" not in answer.text
    assert "http://" not in answer.text.replace("http-equiv", "")


@pytest.mark.parametrize(
    "path", ["runs/../schema.toml", "runs/x/private/clients.json", "runs/..%2f..%2fetc/passwd", "../job", "nope"]
)
def test_only_reports_can_be_read(site: Site, client: httpx.Client, path: str) -> None:
    private = site.project.folder / "runs" / "x" / "private"
    private.mkdir(parents=True)
    (private.parent / "public").mkdir()
    (private / "clients.json").write_text("{}")
    (private.parent / "report.html").write_text("<p>the report</p>")
    answer = client.get(path)
    assert answer.status_code == 404
    shown = client.get("runs/x/report.html")
    assert shown.text == "<p>the report</p>"
    assert "sandbox allow-scripts" in shown.headers["content-security-policy"]


def test_what_is_filled_in_cannot_become_an_option(tmp_path: Path) -> None:
    project = Project(tmp_path, ("--seed.csv",), ("age",), target="--help", client="--json")
    form = {"name": ["--seed=0"], "epsilon": ["--seed 0"], "spend": ["yes"], "promise": [" "]}
    for words in (steps.draft(project), steps.release(project, form), steps.comparison(project, form)):
        options, files = words[1 : words.index("--")], words[words.index("--") + 1 :]
        assert all(word.startswith("--") and "=" in word for word in options)
        assert files == ["--seed.csv"]
        assert "--seed=0" not in options
    with pytest.raises(DataError, match="tick the box"):
        steps.release(project, {**form, "spend": []})
    with pytest.raises(DataError, match="is not there"):
        steps.report(project, {"run": ["../../x"]})


def test_only_tables_of_the_folder_can_be_chosen(site: Site, client: httpx.Client) -> None:
    (site.project.folder / "notes.txt").write_text("no table")
    answer = client.post("tables", data={"file": ["/etc/passwd", "../x.csv", "notes.txt"]})
    assert answer.status_code == 400
    assert "tick at least one table" in answer.text
    assert client.post("draft", data={"target": "age"}).status_code == 400
    assert client.post("tables", content=b"\xff\xfe=1").status_code == 400
    assert client.post("tables", content=b"x" * (2**20 + 1)).status_code == 413


def test_from_tables_to_a_schema_that_is_confirmed(site: Site, client: httpx.Client) -> None:
    assert "lyon.csv" in client.get("").text
    assert 'option value="ill"' in client.post("tables", data={"file": ["lyon.csv", "oslo.csv"]}).text
    assert client.post("draft", data={"target": "wealth"}).status_code == 400
    client.post("draft", data={"target": "ill", "client": ""})
    assert "schema.toml" in done(site)
    assert "It has ended" in client.get("job").text
    page = client.get("schema")
    assert "2 columns hold guesses" in page.text
    bad = client.post("confirm", data={"kind.1": "number", "low.1": "90", "high.1": "20"})
    assert bad.status_code == 400
    assert "low=90" in bad.text
    assert schemas.load(site.project.schema).unconfirmed() == ("ill", "age")
    good = {
        "kind.0": "yes_no",
        "confirmed.0": "yes",
        "kind.1": "number",
        "low.1": "0",
        "high.1": "120",
        "name": "trial",
    }
    assert client.post("confirm", data={**good, "name": "trial"}).status_code == 200
    found = schemas.load(site.project.schema)
    assert found.unconfirmed() == ("age",)
    assert (found.columns[0].low, found.columns[0].high, found.name) == (0.0, 120.0, "trial")


@pytest.mark.slow
def test_a_refusal_is_the_commands_own(site: Site, client: httpx.Client) -> None:
    """A schema with guesses: no release, nothing charged, whatever the page was sent."""
    client.post("tables", data={"file": ["lyon.csv", "oslo.csv"]})
    client.post("draft", data={"target": "ill"})
    done(site)
    filled: dict[str, Any] = {"name": "trial", "epsilon": "1", "spend": "yes", "disjoint": "they are new"}
    client.post("spend", data=filled)
    assert "confirm every entry" in done(site)
    assert site.jobs.last is not None
    assert site.jobs.last.code not in (0, None)
    assert "refused or has failed" in client.get("job").text
    assert site.project.runs == []
    assert [path for path in Path(os.environ["KINFOLK_LEDGERS"]).rglob("*.jsonl") if path.read_bytes()] == []


def test_one_command_at_a_time(site: Site, client: httpx.Client) -> None:
    job = site.jobs.start(["check"])
    answer = client.post("account")
    assert answer.status_code == 400
    assert "a command is running" in answer.text
    assert 'http-equiv="refresh"' in client.get("job").text
    client.post("stop")
    job.wait(60)
    assert not job.running
