"""Planted bugs: deliberately broken variants, each of which at least one check must catch."""

from . import accounts, clips, forged, leaks, noise, people, releases, secure, shown
from .checking import Bug

BUGS: tuple[Bug, ...] = (
    *noise.BUGS,
    *clips.BUGS,
    *leaks.BUGS,
    *forged.BUGS,
    *shown.BUGS,
    *accounts.BUGS,
    *releases.BUGS,
    *people.BUGS,
    *secure.BUGS,
)
CHECKS = {
    "flow": "data followed through the traced program",
    "replay": "the run repeated with recorded releases and one unit changed",
    "mechanism": "property tests of clipping, noise and calibration",
    "attack": "a lower bound on epsilon above the claim",
    "release": "what a release charges, draws, samples and leaves in its public folder",
    "secure": "a silo's side of a secure sum taken apart again, and a server that cheats",
}


def table() -> str:
    """The page docs/explain/planted-bugs.md."""
    lines = [
        "# Planted bugs, and the check that catches each",
        "",
        "A check that cannot fail is not a check. These bugs are planted in the tests (`tests/verify/gallery/`): the",
        "named check must find each, and must find nothing in the sound version. This page is written by",
        "`python -m tests.verify.test_gallery`, and a test compares it with the gallery.",
        "",
        *(f"* **{name}**: {what}" for name, what in CHECKS.items()),
        "",
        "| bug | what was done | caught by |",
        "|---|---|---|",
        *(f"| {bug.name} | {bug.what} | {bug.check} |" for bug in BUGS),
        "",
    ]
    return "\n".join(lines)
