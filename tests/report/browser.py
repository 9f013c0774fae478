"""A real headless Chromium for tests, and questions to ask of a page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kinfolk.report import pdf

DRIVERS = ("/usr/bin/chromedriver", "/usr/lib/chromium-browser/chromedriver")


def needed() -> tuple[str, str]:
    """Browser and driver; without them the test is skipped, or fails where KINFOLK_NEEDS_BROWSER is set (in CI)."""
    browser, driver = pdf.browser(), next((path for path in DRIVERS if Path(path).exists()), None)
    if browser and driver:
        return browser, driver
    says = "no Chromium with its driver here: apt install chromium chromium-driver"
    if os.environ.get("KINFOLK_NEEDS_BROWSER"):
        pytest.fail(says)
    pytest.skip(says)


@contextmanager
def chromium() -> Iterator[Any]:
    """A fresh browser that keeps every message of its console."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    browser, driver = needed()
    with tempfile.TemporaryDirectory(prefix="kinfolk-browser-", ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = browser
        for flag in (*pdf.FLAGS, "--force-device-scale-factor=1", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        window = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield window
        finally:
            window.quit()


def show(window: Any, path: Path, *, width: int = 1100, scheme: str = "light", media: str = "screen") -> None:
    """Opens a page at a width, in a colour scheme, on screen or as printed."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for _ in range(3):  # once, under load, a page was measured without its style sheet
        window.get(path.absolute().as_uri())
        if window.execute_script(STYLED):
            return


STYLED = "return [...document.querySelectorAll('link[rel=stylesheet]')].every(link => link.sheet)"
CONTRAST = """
const channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parse = text => text.match(/[\\d.]+/g).map(Number);
function behind(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
}
function ratio(a, b) { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); }
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  const owner = node.parentElement;
  if (!node.data.trim() || ["SCRIPT", "STYLE"].includes(owner.tagName) || !owner.checkVisibility()) continue;
  const style = getComputedStyle(owner);
  const ink = owner.closest("svg") ? style.fill : style.color;
  found.push([ratio(parse(ink), behind(owner)), node.data.trim().slice(0, 40), "text"]);
}
for (const mark of document.querySelectorAll(".plot svg .mark, .plot svg .line, .plot svg .stem")) {
  if (!mark.checkVisibility()) continue;
  const style = getComputedStyle(mark);
  const inks = [style.fill, style.stroke].filter(ink => ink !== "none");
  found.push([Math.max(...inks.map(ink => ratio(parse(ink), behind(mark)))), mark.getAttribute("class"), "drawing"]);
}
return found;
"""
"""Contrast of every visible text and drawing with what lies behind it."""

OVERFLOW = """
const wide = document.documentElement.clientWidth;
const found = [];
function scrolls(element) {
  for (let at = element; at && at !== document.body; at = at.parentElement) {
    if (getComputedStyle(at).overflowX !== "visible") return true;
  }
  return false;
}
for (const element of document.body.querySelectorAll("*")) {
  if (element.closest(".skip, .read") || !element.checkVisibility()) continue;
  if (scrolls(element.parentElement)) continue;
  for (const box of element.getClientRects()) {
    if (box.right <= wide + 1 && box.left >= -1) continue;
    found.push(element.tagName + "." + element.getAttribute("class"));
    break;
  }
}
return [document.documentElement.scrollWidth - wide, found];
"""
"""By how much the page is wider than the window, and what sticks out."""

OVERLAP = """
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode());) {
  const owner = node.parentElement;
  if (!node.data.trim() || ["SCRIPT", "STYLE"].includes(owner.tagName) || owner.closest(".skip, .read, .tip")) continue;
  if (!owner.checkVisibility()) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const box of range.getClientRects()) {
    if (box.width > 1 && box.height > 1) texts.push([box, node.data.trim().slice(0, 30)]);
  }
}
texts.sort((a, b) => a[0].top - b[0].top);
const found = [];
for (let i = 0; i < texts.length; i++) {
  const [a, first] = texts[i];
  for (let j = i + 1; j < texts.length && texts[j][0].top < a.bottom - 4; j++) {
    const [b, second] = texts[j];
    if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - b.top > 4) {
      found.push(first + " / " + second);
    }
  }
}
return found;
"""
"""Pairs of texts that lie on each other."""
