"""The API reference: every public name is in it, and every parameter is explained."""

from __future__ import annotations

from types import ModuleType

import pytest

import kinfolk
from docs.build import reference

pytestmark = pytest.mark.docs


def test_every_name_that_kinfolk_exports_is_in_the_reference() -> None:
    listed = {id(what) for module in reference.modules() for what in reference.public(module).values()}
    assert [name for name in kinfolk.__all__ if id(getattr(kinfolk, name)) not in listed] == []


@pytest.mark.parametrize("module", reference.modules())
def test_every_public_name_and_every_parameter_is_explained(module: str) -> None:
    found = reference.public(module)
    assert found
    missing = [words for name, what in found.items() for words in reference.unexplained(what, name)]
    assert missing == [], f"say in a docstring what these are: {', '.join(missing)}"


def test_a_name_or_parameter_without_explanation_is_found() -> None:
    def bare(x: int) -> None: ...

    def half(x: int, y: int) -> None:
        """Takes `x`."""

    class Some:
        """A class."""

        def method(self, z: int) -> None:
            """Does it."""

    assert reference.unexplained(bare, "bare") == ["bare"]
    assert reference.unexplained(half, "half") == ["half(y)"]
    assert reference.unexplained(Some, "Some") == ["Some.method(z)"]


def test_a_page_shows_signature_parameters_and_words() -> None:
    page = reference.pages()["reference/accounting.planning.md"]
    assert "## plan" in page
    assert "| `epsilon` |" in page
    with pytest.raises(ValueError, match=r"has no nobody"):
        _listing("nobody")


def _listing(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "GROUPS", {"Some": {"accounting.planning": (name,)}})
        reference.public("accounting.planning")
    return reference
