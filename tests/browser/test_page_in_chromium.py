"""The page in a real browser: headless Chromium, at a phone's width and at a desktop's.

Chromium is spoken to over a pipe by its DevTools protocol (https://chromedevtools.github.io/devtools-protocol): JSON
messages, each ended by a zero byte, on file descriptors 3 and 4. Nothing but the standard library is needed.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time

import pytest

from bench.report import page
from bench.report.suites import suites_of
from tests import records

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
LIMIT_S = 60

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt install chromium)")

# What the page looks like, asked in the page itself. Boxes are in CSS pixels.
QUESTION = """(() => {
  const width = window.innerWidth, seen = e => e.getBoundingClientRect();
  const closed = e => e.closest("details:not([open])") !== null;
  const scrolls = e => e.closest(".box, pre") !== null;
  const wide = [...document.body.querySelectorAll("*")]
    .filter(e => !closed(e) && !scrolls(e) && !e.closest("svg") && seen(e).right > width + 1)
    .map(e => e.tagName + " " + e.textContent.trim().slice(0, 40));
  const outside = [...document.querySelectorAll("svg text")]
    .filter(t => {
      const a = seen(t), b = seen(t.closest("svg"));
      return a.right > b.right + 1 || a.left < b.left - 1 || a.bottom > b.bottom + 1 || a.top < b.top - 1;
    })
    .map(t => t.textContent);
  const boxes = [...document.querySelectorAll(".box")].filter(e => !closed(e));
  return {
    width, wide, outside,
    scroll_width: document.documentElement.scrollWidth,
    svgs: [...document.querySelectorAll("svg")].filter(e => seen(e).width > 100 && seen(e).height > 100).length,
    boxes: boxes.length,
    fitting: boxes.filter(e => seen(e).right <= width + 1).length,
    smallest: Math.min(...[...document.querySelectorAll("svg text")].map(t => seen(t).height)),
    body_size: parseFloat(getComputedStyle(document.body).fontSize),
  };
})()"""


class Browser:
    """One headless Chromium with one tab. Its messages are kept in ``events``."""

    def __init__(self, profile):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, to_write)]  # out of the way of 3 and 4
        quiet = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in (0, 1, 2)]
        ends = [(os.POSIX_SPAWN_DUP2, end, place) for end, place in zip(high, (3, 4), strict=True)]
        self._pid = os.posix_spawn(CHROMIUM, command, os.environ, file_actions=[*quiet, *ends])
        for end in high:
            os.close(end)
        os.close(to_read)
        os.close(to_write)
        os.set_blocking(self._read, False)
        self._last, self._rest, self._session, self.events = 0, b"", None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters) -> dict:
        """Send a command and wait for its result; raises AssertionError when there is none."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self.wait(lambda m: m.get("id") == self._last, method)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait(self, wanted, what: str) -> dict:
        """The next message that is wanted; all others are kept."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            while b"\0" in self._rest:
                raw, _, self._rest = self._rest.partition(b"\0")
                message = json.loads(raw)
                self.events.append(message)
                if wanted(message):
                    return message
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(self._read, 1 << 20)
                assert chunk, f"Chromium ended while {what} was waited for"
                self._rest += chunk
                continue
            time.sleep(0.01)
        raise AssertionError(f"{what}: not within {LIMIT_S} s")

    def open(self, url: str, width: int, height: int, mobile: bool) -> None:
        """Show a page at a width, and wait until all of it is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.events.clear()
        self.ask("Page.navigate", url=url)
        if not self.of("Page.loadEventFired"):
            self.wait(lambda m: m.get("method") == "Page.loadEventFired", "the page")

    def of(self, *methods: str) -> list[dict]:
        """The parameters of the events of these kinds so far."""
        return [m["params"] for m in self.events if m.get("method") in methods]

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError, AssertionError):
            self._session = None
            self.ask("Browser.close")
        deadline = time.monotonic() + 10
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            time.sleep(0.05)
        os.close(self._read)
        os.close(self._write)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser for all tests."""
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page with one suite of each kind, an unfair one, failed and single runs, and a refused file."""
    unfair = records.compare_programs()
    unfair["ddp"]["compression"] = "fp16"
    found = records.suite_records("compare", unfair, rounds=8)
    for kind in ("weak", "strong"):
        found += records.suite_records(kind, records.scaling_programs(kind), rounds=2)
    found += records.suite_records("breakdown", records.breakdown_programs(), rounds=2)
    found += records.suite_records("knobs", records.knob_programs(), rounds=2)
    found += records.suite_records("replay", records.replay_programs(), rounds=2)
    others = [records.record("ddp"), records.record("dp", failed="killed")]
    refused = [f"/a/{'very-' * 40}long/record.json: not a readable record"]
    path = tmp_path_factory.mktemp("page") / "report.html"
    return page.write_page(suites_of(found), others, refused, path)


@pytest.fixture(scope="module", params=WIDTHS)
def seen(request, browser, written):
    """The page at one width: (what it looks like, the events of its loading)."""
    width, height = WIDTHS[request.param]
    browser.open(written.as_uri(), width, height, mobile=request.param == "phone")
    answer = browser.ask("Runtime.evaluate", expression=QUESTION, returnByValue=True)
    assert "exceptionDetails" not in answer, answer
    look = answer["result"]["value"]
    return look | {"asked": width}, browser


def test_nothing_is_wider_than_the_window(seen):
    look, _ = seen
    assert look["wide"] == [] and look["scroll_width"] <= look["asked"] == look["width"]
    assert look["boxes"] == look["fitting"] > 10


def test_all_pictures_are_there_and_their_text_is_inside(seen):
    look, _ = seen
    assert look["svgs"] == 4 + 6 and look["outside"] == []


def test_text_can_be_read(seen):
    look, _ = seen
    assert look["body_size"] >= 16 and look["smallest"] >= 7


def test_only_the_page_itself_is_asked_for(seen, written):
    _, browser = seen
    urls = [event["request"]["url"] for event in browser.of("Network.requestWillBeSent")]
    assert [url for url in urls if not url.startswith("data:")] == [written.as_uri()]


def test_the_console_is_empty(seen):
    _, browser = seen
    assert browser.of("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
