"""A real browser for tests: headless Chromium over the DevTools protocol, through two pipes.

Chromium's --remote-debugging-pipe needs no port and no WebSocket: messages are JSON with a zero byte behind each. So
this small client does what a browser library of many megabytes would do.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program():
    """The path of a Chromium on this machine; None if there is none."""
    return next((actual for name in PROGRAMS if (actual := shutil.which(name))), None)


class Browser:
    """One headless Chromium with one page. ``events`` holds everything it reported."""

    def __init__(self, profile: Path) -> None:
        read_theirs, self._write = os.pipe()
        self._read, write_theirs = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
        shell = f'exec "$0" "$@" 3<&{read_theirs} 4>&{write_theirs}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, program(), *flags],
            pass_fds=(read_theirs, write_theirs),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self._number, self._rest, self.session, self.events = 0, b"", None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """The result of one command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            actual = self._next(60)
            if actual.get("id") == self._number:
                if "error" in actual:
                    raise RuntimeError(f"{method}: {actual['error']['message']}")
                return actual["result"]
            self.events.append(actual)

    def _next(self, seconds):
        end = time.monotonic() + seconds
        while b"\0" not in self._rest:
            if not select.select([self._read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser says nothing")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path):
        """Loads a file, waits until it is there, and forgets what earlier pages reported."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(60))

    def run(self, script):
        """The value of a JavaScript expression in the page."""
        actual = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in actual:
            raise RuntimeError(json.dumps(actual["exceptionDetails"])[:500])
        return actual["result"].get("value")

    def screen(self, width, height=900, theme=""):
        """The size of the window, and the colour scheme that the system is said to prefer."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def picture(self, path: Path, whole=True):
        """A PNG of the page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        options = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))

    def key(self, name, code):
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code)

    def complaints(self):
        """Errors, warnings and uncaught exceptions since the page was opened."""
        actual = []
        for event in self.events:
            kind, printed = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown":
                actual.append(printed["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif kind == "Runtime.consoleAPICalled" and printed["type"] in ("error", "warning", "assert"):
                actual.append(str(printed["args"]))
            elif kind == "Log.entryAdded" and printed["entry"]["level"] in ("error", "warning"):
                actual.append(printed["entry"]["text"])
        return actual

    def requests(self):
        """Addresses that were asked for since the page was opened, without pictures that are in the page."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
        except (RuntimeError, TimeoutError, OSError):
            self.process.kill()
        self.process.wait()
        os.close(self._read)
        os.close(self._write)
