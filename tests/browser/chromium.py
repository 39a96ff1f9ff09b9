"""Headless Chromium for tests.

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

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = {"phone": (390, 844), "desktop": (1280, 900)}
LIMIT_S = 60

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

    def evaluate(self, expression: str):
        """The value of an expression in the page; of a promise, what it promises."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def asked(self) -> list[str]:
        """The addresses that were asked for, without what is in the page itself."""
        urls = [event["request"]["url"] for event in self.of("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith("data:")]

    def close(self) -> None:
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
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()
