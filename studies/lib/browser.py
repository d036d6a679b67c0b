"""A headless Chromium, driven by its DevTools protocol over two pipes; needs no package.

`find` names the program, if there is one: Debian's `chromium`, Chrome, or what `COORP_BROWSER` names.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# How long the browser has for an answer, in seconds; nothing is measured.
ANSWER_MAX = 60.0
# Descriptors that DevTools are read from and written to.
FROM_US, TO_US = 3, 4
# Higher than both.
FREE = 10


def find() -> str | None:
    """The browser, if there is one."""
    named = os.environ.get("COORP_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser with one page, until it is closed."""

    def __init__(self, program: str, folder: Path) -> None:
        theirs, ours = os.pipe()
        back, out = os.pipe()
        self._write, self._read = ours, back
        # Elsewhere, so that neither is one of the two places.
        inherited = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FREE) for end in (theirs, out)]

        def place() -> None:
            os.dup2(inherited[0], FROM_US)
            os.dup2(inherited[1], TO_US)

        self._process = subprocess.Popen(
            [
                program, "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--disable-extensions",
                "--disable-background-networking", f"--user-data-dir={folder}", "about:blank",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=place,
        )  # fmt: skip
        for end in (theirs, out, *inherited):
            os.close(end)
        self._buffer = b""
        self._next = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        """What the page wrote to its console or was refused, and its errors."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for end in (self._write, self._read):
            with contextlib.suppress(OSError):
                os.close(end)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command of the DevTools protocol, and its result."""
        self._next += 1
        number = self._next
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_MAX
        while True:
            answer = self._message(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer.get("result", {})
            self._heard(answer)

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._read, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("the browser does not answer, or has ended")
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def _heard(self, event: dict[str, Any]) -> None:
        said = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                self.complaints.append(" ".join(str(part.get("value", part)) for part in said["args"]))
            case "Runtime.exceptionThrown":
                details = said["exceptionDetails"]
                self.complaints.append(str(details.get("exception", details).get("description", details)))
            case "Log.entryAdded":
                self.complaints.append(said["entry"]["text"])

    def open(
        self, url: str, *, width: int, height: int, scale: float = 1.0, phone: bool = False, dark: bool = False
    ) -> None:
        """Opens a page at a size in CSS pixels, with this many picture pixels per CSS pixel."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:  # noqa: ANN401
        """The value of a JavaScript expression in the page."""
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            raise RuntimeError(f"{expression}: {got['exceptionDetails']}")
        return got["result"].get("value")

    def until(self, expression: str, seconds: float = ANSWER_MAX) -> Any:  # noqa: ANN401
        """Waits until an expression is true, and returns its value."""
        until = time.monotonic() + seconds
        while True:
            value = self.run(expression)
            if value:
                return value
            if time.monotonic() > until:
                raise TimeoutError(f"not within {seconds} s: {expression}; the page says: {self.complaints}")
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Writes what the page looks like, as PNG."""
        more: dict[str, Any] = {"captureBeyondViewport": True} if whole else {}
        got = self.call("Page.captureScreenshot", format="png", **more)
        path.write_bytes(base64.b64decode(got["data"]))
