"""A headless Chromium for tests, driven through two pipes by its own protocol; nothing else is needed.

Messages are JSON with a zero byte at the end. Chromium reads them from descriptor 3 and answers on 4.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
WAIT = 120.0


def find_browser() -> str | None:
    """The path of a Chromium, AGGTREE_BROWSER first; None when there is none."""
    given = os.environ.get("AGGTREE_BROWSER")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser; `events` is everything the page was seen to do."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._data = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, page: Path, *, width: int, scheme: str) -> None:
        """Show a file at a width, with a light or dark scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read()

    def evaluate(self, expression: str) -> Any:
        """The value of an expression on the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def requests(self) -> list[str]:
        """Addresses that the page requested, except its own."""
        asked = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        urls = [str(event["params"]["request"]["url"]) for event in asked]
        return [url for url in urls[1:] if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """What would be in the console."""
        methods = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in methods]

    def _read(self) -> dict[str, Any]:
        """The next message; events are kept."""
        end = time.monotonic() + WAIT
        while b"\0" not in self._data:
            ready, _, _ = select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._from, 1 << 20)
            assert data, "the browser has gone"
            self._data += data
        message, _, self._data = self._data.partition(b"\0")
        record: dict[str, Any] = json.loads(message)
        if "method" in record:
            self.events.append(record)
        return record


@contextmanager
def browser(path: str, profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, gone at the end."""
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
    options += ["--remote-debugging-pipe", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    # The shell puts the two ends where the browser looks for them.
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["/bin/bash", "-c", script, path, *options],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        with suppress(OSError):
            os.write(ours_out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(ours_out)
        os.close(ours_in)
