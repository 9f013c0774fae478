"""What kinfolk uses of Flower, and that it is in one place. Also run against the newest Flower (CONTRIBUTING.md)."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from kinfolk.deploy import flower_api
from kinfolk.deploy.keys import write_node_key

pytestmark = pytest.mark.skipif(find_spec("flwr") is None, reason="pip install 'kinfolk[flower]'")
SOURCE = Path(flower_api.__file__).parents[1]


def test_flower_is_used_in_one_module() -> None:
    uses = re.compile(r"^\s*(from|import) flwr", re.MULTILINE)
    found = {path.name for path in SOURCE.rglob("*.py") for text in [path.read_text()] if uses.search(text)}
    types = {"carriers.py", "flower_server.py"}  # names of types only
    assert found == {"flower_api.py", *types}
    for name in types:
        text = (SOURCE / "deploy" / name).read_text()
        assert not uses.search(text.split("if TYPE_CHECKING:")[0])
        assert all(line.startswith("    ") for line in text.splitlines() if uses.search(line))


def test_a_silos_signature_is_one_that_flower_checks(tmp_path: Path) -> None:
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER
    from flwr.supercore import constant

    write_node_key(tmp_path, "node")
    headers = flower_api.signer(tmp_path / "node")()
    assert set(headers) == {
        constant.FLEET_HTTP_PUBLIC_KEY_HEADER,
        constant.FLEET_HTTP_SIGNATURE_HEADER,
        TIMESTAMP_HEADER,
    }
    assert flower_api.CLOCKS_APART == SYSTEM_TIME_TOLERANCE


def test_the_routes_and_options_that_are_counted_on_are_there() -> None:
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    assert ("POST", flower_api.PUSH) in PROTOBUF_REQUEST_TYPES
    assert all(callable(getattr(extensions, name)) for name in ("get_middleware", "get_lifespan_contexts"))
    options = flower_api.superlink_options(Path("f"), 9)
    assert _parse_args_run_superlink().parse_args(options).port == 9
