"""Pictures are well formed and show what they say."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.studies.covariance import picture
from kinfolk.theory.covariance_noise import published_delta


@pytest.mark.fast
def test_the_picture_is_well_formed() -> None:
    svg = picture.supports(count=50)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "nan" not in svg
    assert svg.count("<circle") == 200


def test_the_picture_of_supports_shows_the_share_that_theory_gives() -> None:
    svg = picture.supports(count=4000, epsilon=0.5)
    share = int(svg.split("with the client; ")[1].split("%")[0])
    assert abs(share / 100 - published_delta(0.5)) < 0.03
    assert np.isclose(published_delta(0.5), 0.3935, atol=1e-4)
