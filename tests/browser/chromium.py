"""Headless Chromium for tests.

Chromium is spoken to over a pipe by its DevTools protocol (https://chromedevtools.github.io/devtools-protocol): JSON
messages, each ended by a zero byte, on file descriptors 3 and 4. Nothing but the standard library is needed.
"""

import fcntl
import json
import os
import select
import shutil
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
LIMIT_S = 60

# JavaScript: what is wider than the window and does not scroll, and text of pictures that is outside of them. Boxes are
# in CSS pixels.
LAYOUT = """((text, scrolling) => {
  const width = window.innerWidth, seen = e => e.getBoundingClientRect();
  const all = (what, wanted) => [...document.querySelectorAll(what)].filter(wanted).map(e => e.outerHTML.slice(0, 80));
  return {
    width, scroll_width: document.documentElement.scrollWidth,
    size: parseFloat(getComputedStyle(document.querySelector(text)).fontSize),
    wide: all(`${text} *`, e => !e.closest(`${scrolling}, svg *`) && seen(e).right > width + 1),
    outside: all("svg text", t => {
      const a = seen(t), b = seen(t.closest("svg"));
      return a.right > b.right + 1 || a.left < b.left - 1 || a.bottom > b.bottom + 1 || a.top < b.top - 1;
    }),
  };
})"""

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian: apt install chromium)")


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
        for end in (*high, to_read, to_write):
            os.close(end)
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
        while True:
            while b"\0" in self._rest:
                raw, _, self._rest = self._rest.partition(b"\0")
                message = json.loads(raw)
                self.events.append(message)
                if wanted(message):
                    return message
            assert select.select([self._read], [], [], LIMIT_S)[0], f"{what}: not within {LIMIT_S} s"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, f"Chromium ended while {what} was waited for"
            self._rest += chunk

    def open(self, page: Path, width: str = "desktop", query: str = "") -> None:
        """Show a page at one of WIDTHS, and wait until all of it is loaded."""
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        self.ask("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=width == "phone")
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri() + query)
        self.wait_for_page()

    def wait_for_page(self) -> None:
        if not self.of("Page.loadEventFired"):
            self.wait(lambda m: m.get("method") == "Page.loadEventFired", "the page")

    def of(self, *methods: str) -> list[dict]:
        return [m["params"] for m in self.events if m.get("method") in methods]

    def evaluate(self, expression: str):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector(`{selector}`).textContent")

    def assert_fits(self, width: str, text: str, scrolling: str) -> None:
        """The page fits into its width, can be read, and has no error. text, scrolling: selectors."""
        look = self.evaluate(f"{LAYOUT}(`{text}`, `{scrolling}`)")
        assert look["wide"] == look["outside"] == [] and look["size"] >= 16
        assert look["scroll_width"] <= look["width"] == WIDTHS[width][0]
        assert self.of("Network.loadingFailed", "Runtime.exceptionThrown", "Log.entryAdded") == []

    def asked(self) -> list[str]:
        urls = [event["request"]["url"] for event in self.of("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith("data:")]

    def close(self) -> None:
        self._session = None
        self.ask("Browser.close")
        os.waitpid(self._pid, 0)
        os.close(self._read)
        os.close(self._write)


@pytest.fixture(scope="module")  # one that waits takes 2 % of a core
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
