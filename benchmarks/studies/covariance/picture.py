"""The picture of why the published noise of covariance sharing is not private."""

from __future__ import annotations

import numpy as np

from kinfolk import svg
from kinfolk.verify.attack_charts import ABSENT, HEIGHT, PRESENT, WIDTH

COLOURS = (ABSENT, PRESENT)


def supports(seed: int = 0, count: int = 400, epsilon: float = 0.5) -> str:
    """Why the published noise is not private: outputs for one feature pair, without and with a client.

    One matrix is three numbers; shown are the variance along the client's direction u, and across it. Wishart noise
    never goes below what is there, so with the client nothing lies below its line: an output there proves its absence.
    """
    generator = np.random.default_rng(seed)
    width = WIDTH / 2
    parts = []
    for panel, name in enumerate(("published: Wishart noise", "sound: symmetric Gaussian noise")):
        left = panel * width
        clouds = []
        for present in (0.0, 1.0):
            if panel == 0:
                normal = generator.normal(size=(count, 3, 2)) / np.sqrt(2 * epsilon)
                noise = np.einsum("cki,ckj->cij", normal, normal)
            else:
                noise = generator.normal(size=(count, 2, 2)) * 2.5
                noise = (noise + noise.transpose(0, 2, 1)) / 2
            moment = noise + np.diag([present, 0.0])
            clouds.append(moment[:, 0, 0] - np.square(moment[:, 0, 1]) / np.where(panel == 0, moment[:, 1, 1], np.inf))
        low, high = (-0.5, 6.0) if panel == 0 else (-9.0, 10.0)

        along = svg.scale(low, high, left + 30, left + width - 30)
        parts.append(svg.text(left + 30, 48, name))
        for row, (cloud, colour, label) in enumerate(
            zip(clouds, COLOURS, ("without the client", "with it"), strict=True)
        ):
            y = 90 + 90 * row
            parts.append(svg.text(left + 30, y - 26, label, fill=colour))
            for value in cloud:
                height = y + generator.uniform(-16, 16)
                parts.append(svg.tag("circle", cx=along(value), cy=height, r=1.6, fill=colour))
        if panel == 0:
            edge = along(1.0)
            parts.append(svg.line(edge, 60, edge, 210, stroke=svg.INK))
            share = float((clouds[0] < 1).mean())
            parts.append(
                svg.text(left + 30, 232, f"left of the line: impossible with the client; {share:.0%} of the runs")
            )
            parts.append(svg.text(left + 30, 248, "without it land there, and prove that it is not there"))
        else:
            parts.append(svg.text(left + 30, 232, "the same outputs are possible in both worlds,"))
            parts.append(svg.text(left + 30, 248, "only a little more or less likely"))
    parts.append(svg.text(8, 280, "across: what is left of the released moment along the client's model, K^2 = 1"))
    return svg.drawing(f"What is published, {count} runs each, epsilon {epsilon:g}", WIDTH, HEIGHT, parts)
