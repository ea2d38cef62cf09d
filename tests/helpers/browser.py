"""A headless Chromium without a network, which is ended with everything it started."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

SECONDS = 120  # what anything in the browser may take on a machine that is busy
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@contextmanager
def chromium(width: int = 1360, height: int = 900) -> Iterator[Any]:
    """A driver of a new browser; the test is skipped where there is none."""
    binary, driver_file = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver_file is None:
        pytest.skip("needs Chromium: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (*_ARGUMENTS, f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    folder = tempfile.mkdtemp()  # Chromium leaves some in the folder for temporary files
    service = webdriver.ChromeService(driver_file, env=os.environ | {"TMPDIR": folder})
    driver = None
    try:
        driver = webdriver.Chrome(options=options, service=service)
        driver.set_page_load_timeout(SECONDS)
        driver.set_script_timeout(SECONDS)
        driver.command_executor.client_config.timeout = SECONDS
        yield driver
    finally:
        started = _started_by(service)
        with suppress(Exception):  # a browser that does not answer is killed
            driver.quit() if driver else service.stop()
        for process in psutil.wait_procs(started, timeout=5)[1]:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _started_by(service: Any) -> list[psutil.Process]:
    """The driver's process and the browser's; the server of ranks is a child of this process too."""
    with suppress(AttributeError, psutil.NoSuchProcess):  # it was not started; it has ended
        driver = psutil.Process(service.process.pid)
        return [driver, *driver.children(recursive=True)]
    return []


def wait_for(driver: Any, script: str) -> Any:
    """What a script returns as soon as that is true."""
    deadline = time.monotonic() + SECONDS
    while not (found := driver.execute_script(f"return {script}")):
        assert time.monotonic() < deadline, f"{script} is not true after {SECONDS} s"
        time.sleep(0.02)
    return found


_NOTE_FIRST = """
let page;
Object.defineProperty(window, "paceline", {
  get: () => page,
  set: (found) => {
    page = found;
    const inView = (chart) => chart.card.getBoundingClientRect().top < innerHeight;
    window.first = found.charts.map((chart) => [Boolean(chart.ready), inView(chart)]);
  },
});
"""


def open_page(driver: Any, page: Path) -> list[tuple[bool, bool]]:
    """Open a report. Of each chart: whether it was ready, and in view, when the page said it is drawn."""
    noted = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _NOTE_FIRST})
    try:
        driver.get(page.resolve().as_uri())
        wait_for(driver, "window.paceline && window.paceline.drawn")
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", noted)
    return [(ready, in_view) for ready, in_view in driver.execute_script("return window.first")]


def requested(driver: Any) -> list[str]:
    """The addresses that were asked for since the last call, but for files."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert urls, "the log has no request at all"
    return [url for url in urls if not url.startswith("file:")]


def errors(driver: Any) -> list[str]:
    """The errors of the console since the last call, uncaught exceptions among them."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
