"""The whole way in a real browser: tables, schema, comparison, release, report; with a keyboard, at a phone's width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinfolk.app.site import Site
from tests.app.test_site import site as served
from tests.app.test_site import write_tables
from tests.report.browser import chromium

pytestmark = [pytest.mark.slow, pytest.mark.browser]
site = served


@pytest.fixture
def window() -> Iterator[Any]:
    with chromium() as found:
        yield found


def press(window: Any, words: str) -> None:
    """The button with these words, by the keyboard."""
    from selenium.webdriver.common.keys import Keys

    (button,) = [one for one in window.find_elements("tag name", "button") if one.text == words]
    button.send_keys(Keys.ENTER)


def fill(window: Any, name: str, words: str) -> None:
    place = window.find_element("name", name)
    place.clear()
    place.send_keys(words)


def says(window: Any, words: str, where: str = "main") -> None:
    """Waits until a page shows these words: a key that was pressed may still be leading to it."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait

    passing = (WebDriverException,)  # a page that comes again in the middle of a look has several words for that
    wait = WebDriverWait(window, 30, ignored_exceptions=passing)
    wait.until(lambda w: words in w.find_element("tag name", where).text, f"{words!r} is not there")


def ended(window: Any, site: Site, words: str = "") -> None:
    """Waits for the command that runs, and for the page to say so, and this."""
    says(window, "The same at a prompt")
    assert site.jobs.last is not None
    site.jobs.last.wait(300)
    says(window, "Done", "h1")
    says(window, words)


def fits(window: Any) -> bool:
    """No sideways scrolling."""
    return bool(window.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"))


def test_from_tables_to_a_report_without_a_prompt(site: Site, window: Any, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import Select

    write_tables(tmp_path, rows=60)
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    window.get(site.address)
    for box in window.find_elements("name", "file"):
        box.click()
    press(window, "These tables")
    says(window, "Whose row it is")
    Select(window.find_element("name", "target")).select_by_value("ill")
    assert fits(window)
    press(window, "Draft a schema")
    ended(window, site, "schema.toml")
    window.find_element("link text", "Confirm the schema").click()
    says(window, "hold guesses")
    fill(window, "low.1", "0")
    fill(window, "high.1", "120")
    for place in (0, 1):
        window.find_element("name", f"confirmed.{place}").click()
    fill(window, "name", "trial")
    assert fits(window)
    press(window, "Save")
    says(window, "All columns are confirmed")
    window.find_element("partial link text", "What a budget gains").click()
    fill(window, "epsilon", "4")
    press(window, "Compare")
    ended(window, site, "page:")
    window.find_element("link text", "See the comparison").click()
    window.find_element("partial link text", "compare-").click()
    says(window, "mean_regularized")
    window.get(site.address + "release")
    fill(window, "epsilon", "4")
    fill(window, "disjoint", "these people are in no other table")
    press(window, "Release")
    says(window, "tick the box")
    fill(window, "epsilon", "4")
    fill(window, "disjoint", "these people are in no other table")
    window.find_element("name", "spend").click()
    press(window, "Release")
    ended(window, site)
    assert site.jobs.last is not None
    assert site.jobs.last.code == 0, site.jobs.last.output
    assert "--seed" not in site.jobs.last.words
    window.find_element("link text", "Write a report").click()
    says(window, "With private numbers")
    press(window, "Write a report")
    ended(window, site)
    window.find_element("link text", "Read the report").click()
    window.find_element("partial link text", "report.html").click()
    says(window, "release", "header")
    troubles = [entry["message"] for entry in window.get_log("browser") if entry["level"] == "SEVERE"]
    assert [words for words in troubles if "400" not in words] == []
