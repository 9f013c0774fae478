"""`flower-superlink` with a guard in front: from other machines only the silos' own part of its interface is open.

Flower serves three interfaces on one port. Silos need `fleet`, where their keys are checked. `control` starts runs (of
any code) and `runtime` hands out the server's tasks; without an account service neither asks who is calling, so here
both answer this machine only. Run by its path, like `proxy.py`.
"""

from __future__ import annotations

from typing import Any

OPEN = ("/v1/fleet/",)
HERE = ("127.0.0.1", "::1")


class Guard:
    """Middleware: 403 for everything that is neither the silos' interface nor called from this machine."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or allowed(scope["path"], (scope.get("client") or ("",))[0]):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def allowed(path: str, host: str) -> bool:
    """Whether a caller from this address may use this path.

    >>> allowed("/v1/fleet/pull-messages", "10.0.0.7"), allowed("/v1/control/start-run", "10.0.0.7")
    (True, False)
    """
    return host in HERE or (path.startswith(OPEN) and ".." not in path)


def main() -> None:
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    before = extensions.get_middleware
    extensions.__dict__["get_middleware"] = lambda: (Middleware(Guard), *before())
    flower_superlink()


if __name__ == "__main__":
    main()
