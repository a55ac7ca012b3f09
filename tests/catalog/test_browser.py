"""The site in a real browser, headless: search, console, phone, dark mode, no script.

Speaks WebDriver's own protocol, which is a few JSON requests, to Chromium's chromedriver.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from contracts import ContractError
from contracts.catalog import Entry, Subject
from contracts.pages import write

SPARSE = "sparse_mla_q8kv8_prefill_fwd"
HUNYUAN = "hunyuan_qkv_rope_pack"
KINDS = ("index.html", f"{SPARSE}/index.html", f"{HUNYUAN}/img_k-num_heads.html")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
CHROMEDRIVER = shutil.which("chromedriver")
QUIET = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element, fixed by the protocol

CONTRAST = """
  const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map((value) => {
    const part = value / 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const luminance = (colour) => {
    const [red, green, blue] = channels(colour);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const backdrop = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (element) => {
    const [low, high] = [getComputedStyle(element).color, backdrop(element)]
      .map(luminance).sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const seen = [...document.querySelectorAll("body *")].filter(
    (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
      && element.getClientRects().length && !["SCRIPT", "STYLE"].includes(element.tagName));
  return Math.min(...seen.map(ratio));
"""


class Browser:
    """One session of a browser."""

    def __init__(self, port: int) -> None:
        self.server = f"http://127.0.0.1:{port}"
        self.session = ""
        options = {"binary": CHROMIUM, "args": list(QUIET)}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self.ask("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{answer['sessionId']}"

    def ask(self, path: str, data: Any = None, method: str = "POST") -> Any:
        body = json.dumps(data or {}).encode() if method == "POST" else None
        request = Request(f"{self.server}{self.session}{path}", body, method=method)
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path | str) -> None:
        address = page.as_uri() if isinstance(page, Path) else page
        self.ask("/url", {"url": address})

    def run(self, script: str) -> Any:
        return self.ask("/execute/sync", {"script": script, "args": []})

    def develop(self, command: str, **parameters: Any) -> None:
        """A command of the browser's development tools."""
        self.ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def element(self, selector: str) -> str:
        found: str = self.ask("/element", {"using": "css selector", "value": selector})[ELEMENT]
        return found

    def type(self, selector: str, text: str) -> None:
        element = self.element(selector)
        self.ask(f"/element/{element}/clear")
        self.ask(f"/element/{element}/value", {"text": text})

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.ask("/se/log", {"type": "browser"})]

    def close(self) -> None:
        self.ask("", method="DELETE")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None or CHROMEDRIVER is None:
        missing = "chromium" if CHROMIUM is None else "chromedriver"
        pytest.skip(f"{missing} is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        [CHROMEDRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        started = _start(port, driver)
        yield started
        started.close()
    finally:
        driver.terminate()
        driver.wait(timeout=20)


def _start(port: int, driver: subprocess.Popen[bytes]) -> Browser:
    for _ in range(100):
        try:
            return Browser(port)
        except URLError:
            assert driver.poll() is None, "chromedriver ended by itself"
            time.sleep(0.2)
    raise AssertionError("chromedriver does not answer")


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory,
    subjects: dict[str, Subject],
    entries: dict[str, Entry],
) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write(list(subjects.values()), list(entries.values()), folder)
    return folder


@pytest.fixture(autouse=True)
def _as_usual(browser: Browser) -> Iterator[None]:
    yield
    browser.develop("Emulation.clearDeviceMetricsOverride")
    browser.develop("Emulation.setEmulatedMedia", features=[])
    browser.develop("Emulation.setScriptExecutionDisabled", value=False)
    browser.complaints()


def results(browser: Browser) -> list[str]:
    return browser.run(
        "return [...document.querySelectorAll('#results a')].map(a => a.textContent)"
    )


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("kv d_qk must match q d_qk=576, got 512", f"{SPARSE}/kv-d_qk"),
        ("ValueError: image QKV shapes must match", f"{HUNYUAN}/img_k-num_heads"),
        ("rank 3: kv axis 2 (d_qk) is 512, expected 576", f"{SPARSE}/kv-d_qk"),
        (f"{SPARSE}/kv-d_qk", f"{SPARSE}/kv-d_qk"),
        ("head_dim-even", f"{HUNYUAN}/head_dim-even"),
        ("lse is on cpu, expected cuda:0", f"{SPARSE}/same-device"),
        ("padded heads multiple", f"{SPARSE}/h_q-multiple-of-64"),
    ],
)
def test_search_finds_what_was_pasted(browser: Browser, site: Path, text: str, first: str) -> None:
    browser.open(site / "index.html")
    browser.type("#query", text)
    assert results(browser)[0] == first


def test_a_found_entry_opens(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    browser.type("#query", "kv d_qk must match q d_qk=576, got 512")
    browser.run("document.querySelector('#results a').click()")
    assert browser.run("return document.title") == f"{SPARSE}/kv-d_qk · Contracts"
    assert "Allocate the cache" in browser.run("return document.body.innerText")
    assert browser.complaints() == []


def test_a_whole_error_is_found_line_by_line(
    browser: Browser, site: Path, subjects: dict[str, Subject]
) -> None:
    with pytest.raises(ContractError) as caught:
        subjects[SPARSE].contract.check_axes(h_q=16, d_qk=500)
    browser.open(site / "index.html")
    browser.type("#query", str(caught.value))
    assert results(browser) == [f"{SPARSE}/d_qk-width", f"{SPARSE}/h_q-multiple-of-64"]


def test_a_search_can_be_linked_to(browser: Browser, site: Path) -> None:
    browser.open(f"{(site / 'index.html').as_uri()}?q=image%20QKV%20shapes%20must%20match")
    assert len(results(browser)) == 11


def test_nonsense_is_said_to_be_nowhere(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    browser.type("#query", "zzyzx")
    assert results(browser) == []
    said = browser.run("return document.getElementById('found').textContent")
    assert said == "Nothing like this is in the catalogue."


@pytest.mark.parametrize("page", KINDS)
def test_the_console_stays_empty(browser: Browser, site: Path, page: str) -> None:
    browser.open(site / page)
    assert browser.complaints() == []


def test_an_error_would_be_seen_in_the_console(browser: Browser, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text("<script>missing()</script>")
    browser.open(broken)
    assert "missing is not defined" in browser.complaints()[0]


@pytest.mark.parametrize("page", KINDS)
def test_a_phone_needs_no_sideways_scrolling(browser: Browser, site: Path, page: str) -> None:
    browser.develop(
        "Emulation.setDeviceMetricsOverride",
        width=360,
        height=740,
        deviceScaleFactor=2,
        mobile=True,
    )
    browser.open(site / page)
    browser.run("document.querySelectorAll('details').forEach(item => item.open = true)")
    assert browser.run("return window.innerWidth") == 360
    assert browser.run("return document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("page", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(browser: Browser, site: Path, page: str, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.develop("Emulation.setEmulatedMedia", features=[feature])
    browser.open(site / page)
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[scheme]
    assert browser.run(CONTRAST) >= 4.5  # WCAG's level AA


def test_without_scripts_everything_can_be_read(browser: Browser, site: Path) -> None:
    browser.develop("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(site / "index.html")
    text = browser.ask(f"/element/{browser.element('main')}/text", method="GET")
    assert "Paste an error message" not in text  # the search needs its script, and hides
    assert "h_q-multiple-of-64" in text
