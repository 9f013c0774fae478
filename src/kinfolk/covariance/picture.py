"""Pictures of covariance sharing, as self-contained SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kinfolk.privacy.picture import HEIGHT, MARGIN, WIDTH, _page, _text

COLOURS = ("#4477aa", "#cc6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#555555", "#999933", "#ee8866", "#000000")


def lines(
    title: str, across: str, up: str, x: Sequence[float], curves: Mapping[str, Sequence[float]], *, log_y: bool = True
) -> str:
    """Curves over a common, logarithmic x axis. A curve that leaves the picture is cut at its edge."""
    values = np.array([list(curve) for curve in curves.values()], float)
    finite = values[np.isfinite(values) & (values > 0)]
    low, high = float(finite.min()) * 0.9, min(float(finite.max()), 20 * float(np.median(finite))) * 1.1
    scale = np.log10 if log_y else np.asarray
    right = WIDTH - 200

    def place(value: float, at: float) -> tuple[float, float]:
        first, last = np.log10(x[0]), np.log10(x[-1])
        share = (np.log10(value) - first) / max(float(last - first), 1e-9)
        level = (scale(np.clip(at, low, high)) - scale(low)) / (scale(high) - scale(low))
        return MARGIN + share * (right - MARGIN), HEIGHT - MARGIN - float(level) * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<line x1="{MARGIN}" y1="{HEIGHT - MARGIN}" x2="{right}" y2="{HEIGHT - MARGIN}" stroke="#222"/>',
        f'<line x1="{MARGIN}" y1="{MARGIN}" x2="{MARGIN}" y2="{HEIGHT - MARGIN}" stroke="#222"/>',
        _text(MARGIN, HEIGHT - 8, f"across: {across} (logarithmic); up: {up}{' (logarithmic)' if log_y else ''}"),
    ]
    parts += [_text(place(value, low)[0] - 8, HEIGHT - MARGIN + 14, f"{value:g}") for value in x]
    for level in np.geomspace(low, high, 4) if log_y else np.linspace(low, high, 4):
        parts.append(_text(4, place(x[0], float(level))[1] + 4, f"{level:.3g}"))
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join("{:.1f},{:.1f}".format(*place(a, b)) for a, b in zip(x, curve, strict=True) if b > 0)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(right + 8, MARGIN + 16 * number, name, colour))
    return _page(title, HEIGHT, parts)


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

        def along(value: float, left: float = left, low: float = low, high: float = high) -> float:
            return left + 30 + (np.clip(value, low, high) - low) / (high - low) * (width - 60)

        parts.append(_text(left + 30, 48, name))
        for row, (cloud, colour, label) in enumerate(
            zip(clouds, COLOURS[:2], ("without the client", "with it"), strict=True)
        ):
            y = 90 + 90 * row
            parts.append(_text(left + 30, y - 26, label, colour))
            for value in cloud:
                height = y + generator.uniform(-16, 16)
                parts.append(f'<circle cx="{along(value):.1f}" cy="{height:.1f}" r="1.6" fill="{colour}"/>')
        if panel == 0:
            edge = along(1.0)
            parts.append(f'<line x1="{edge:.1f}" y1="60" x2="{edge:.1f}" y2="210" stroke="#222"/>')
            share = float((clouds[0] < 1).mean())
            parts.append(
                _text(left + 30, 232, f"left of the line: impossible with the client; {share:.0%} of the runs")
            )
            parts.append(_text(left + 30, 248, "without it land there, and prove that it is not there"))
        else:
            parts.append(_text(left + 30, 232, "the same outputs are possible in both worlds,"))
            parts.append(_text(left + 30, 248, "only a little more or less likely"))
    parts.append(_text(8, 280, "across: what is left of the released moment along the client's model, K^2 = 1"))
    return _page(f"What is published, {count} runs each, epsilon {epsilon:g}", HEIGHT, parts)
