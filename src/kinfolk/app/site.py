"""The pages behind one address that only the person who started them knows, on this machine only.

Three things keep others out: the server listens on the loopback address; every address begins with a secret; and a
request must name this very host, so that a page from elsewhere cannot make the browser ask in its stead.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from kinfolk.app import pages, steps
from kinfolk.app.jobs import BusyError, Jobs
from kinfolk.app.steps import RUNS, Form, Project
from kinfolk.data.federation import DataError
from kinfolk.report.page import POLICY as REPORT_POLICY

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
LONGEST = 2**20
"""Bytes of a form."""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""What the browser may do with a page of ours: show it and send its forms back."""
HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
NEXT = {
    "schema": ("schema", "Confirm the schema"),
    "compare": ("compare", "See the comparison"),
    "train": ("reports", "Write a report"),
    "report": ("reports", "Read the report"),
    "ledger": ("compare", "Back"),
}
"""Where to go on after a command."""


class Site:
    """All pages of one project. `folder`: where tables are and runs go. `port`: where it listens."""

    def __init__(self, folder: Path, port: int) -> None:
        self.project = Project(folder)
        self.jobs = Jobs(folder)
        self.secret = secrets.token_urlsafe(24)
        self.hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
        self.address = f"http://{HOST}:{port}/{self.secret}/"

    def app(self) -> Starlette:
        """For a server."""
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])

    async def _answer(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import PlainTextResponse

        secret, _, path = request.path_params["path"].partition("/")
        if request.headers.get("host", "") not in self.hosts:
            return PlainTextResponse("not this host", 403, HEADERS)
        if not secrets.compare_digest(secret.encode(), self.secret.encode()):
            return PlainTextResponse("not found", 404, HEADERS)
        if request.method == "GET":
            return await run_in_threadpool(self._get, path)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LONGEST:
                return PlainTextResponse("too long", 413, HEADERS)
        try:
            form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=5000)
        except ValueError:
            return PlainTextResponse("not a form", 400, HEADERS)
        return await run_in_threadpool(self._post, path, form)

    def _get(self, path: str, message: str = "") -> Response:
        from starlette.responses import HTMLResponse, PlainTextResponse

        if path.startswith(f"{RUNS}/"):
            return self._file(path.removeprefix(f"{RUNS}/"))
        found = {
            "": self._choose,
            "schema": self._schema,
            "compare": lambda text: pages.gains(self.project, text),
            "release": lambda text: pages.spend(self.project, steps.loaded(self.project), text),
            "reports": lambda text: pages.reports(self.project, self._written(), text),
            "job": self._job,
        }.get(path)
        if found is None:
            return PlainTextResponse("not found", 404, HEADERS)
        try:
            text, status = found(message), 400 if message else 200
        except (DataError, ValueError) as error:
            text, status = pages.page("Error", pages.error(str(error)), path), 400
        return HTMLResponse(text, status, {**HEADERS, "Content-Security-Policy": POLICY})

    def _choose(self, message: str) -> str:
        return pages.choose(self.project, message)

    def _schema(self, message: str) -> str:
        return pages.confirm(steps.loaded(self.project), message)

    def _job(self, _: str) -> str:
        last = self.jobs.last
        return pages.job(last, NEXT.get(last.words[0] if last else "", ("", "Begin")))

    def _post(self, path: str, form: Form) -> Response:
        from starlette.responses import PlainTextResponse, RedirectResponse

        actions: dict[str, tuple[str, Callable[[], str]]] = {
            "tables": ("", lambda: self._take(steps.chosen(self.project, form), "")),
            "draft": ("", lambda: self._draft(form)),
            "confirm": ("schema", lambda: self._confirm(form)),
            "try": ("compare", lambda: self._start(steps.comparison(self.project, form))),
            "account": ("compare", lambda: self._start(steps.account())),
            "spend": ("release", lambda: self._start(steps.release(self.project, form))),
            "report": ("reports", lambda: self._start(steps.report(self.project, form))),
            "stop": ("job", self._stop),
        }
        if path not in actions:
            return PlainTextResponse("not found", 404, HEADERS)
        here, act = actions[path]
        try:
            then = act()
        except (DataError, ValueError, BusyError) as error:
            return self._get(here, str(error))
        return RedirectResponse(f"/{self.secret}/{then}", 303, HEADERS)

    def _take(self, project: Project, then: str) -> str:
        self.project = project
        return then

    def _draft(self, form: Form) -> str:
        self.project = steps.described(self.project, form)
        return self._start(steps.draft(self.project))

    def _confirm(self, form: Form) -> str:
        steps.confirm(self.project, form)
        return "schema"

    def _start(self, words: list[str]) -> str:
        self.jobs.start(words)
        return "job"

    def _stop(self) -> str:
        if self.jobs.last is not None:
            self.jobs.last.stop()
        return "job"

    def _readable(self) -> dict[str, Path]:
        """The files that are shown, by their addresses below `runs/`: reports and comparisons, nothing else."""
        home = self.project.folder / RUNS
        names = [f"{run}/{steps.report_name(private)}" for run in self.project.runs for private in (False, True)]
        return {name: home / name for name in (*self.project.comparisons, *names) if (home / name).is_file()}

    def _written(self) -> list[tuple[str, str]]:
        return [(f"{RUNS}/{name}", name) for name in reversed(self._readable()) if "/" in name]

    def _file(self, name: str) -> Response:
        from starlette.responses import HTMLResponse, PlainTextResponse

        path = self._readable().get(name)
        if path is None:
            return PlainTextResponse("not found", 404, HEADERS)
        policy = f"{REPORT_POLICY}; frame-ancestors 'none'; sandbox allow-scripts"
        return HTMLResponse(path.read_text(), 200, {**HEADERS, "Content-Security-Policy": policy})


def serve(site: Site, port: int, ready: Callable[[], None], ended: Callable[[], bool] = lambda: False) -> None:
    """Serves until it is stopped. `ready`: called when the pages can be opened. `ended`: whether to stop, by itself."""
    import socket

    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or ended()

    config = uvicorn.Config(
        site.app(),
        host=HOST,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
    )
    try:
        Server(config).run()
    finally:
        site.jobs.close()
