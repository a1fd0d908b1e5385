# SPDX-License-Identifier: BSD-3-Clause
"""Looks at a report in a headless Chromium: checks it, and takes screenshots.

    torchalgo explain model.pt -o report.html
    python scripts/look_at_report.py report.html --images folder

It fails on a message in the console, on a request of another file, on a page that is wider than the
window, and on a part that is wider than its place. It also fails if the keyboard does not open and
close the details of an operation. It needs the program `chromium` (Debian: apt-get install
chromium). It is not part of the tests.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class View:
    """A window of the browser."""

    name: str
    width: int
    height: int
    is_dark: bool = False
    media: str = "screen"
    part: str = ""  # the id of the element at the top; empty: the top of the page


VIEWS = (
    View("report", 1180, 900),
    View("report_network", 1180, 900, part="p0-network"),
    View("report_times", 1180, 1000, part="p0-table"),
    View("report_dark", 1180, 900, is_dark=True),
    View("report_dark_network", 1180, 900, is_dark=True, part="p0-network"),
    View("report_phone", 390, 844),
    View("report_phone_network", 390, 844, part="p0-network"),
    View("report_phone_times", 390, 844, part="p0-table"),
    View("report_print", 794, 1123, media="print"),
    View("report_print_network", 794, 1123, media="print", part="p0-network"),
)


class Browser:
    """A headless Chromium that is driven through a pipe, with the DevTools protocol."""

    def __init__(self, program: str) -> None:
        read_command, self._commands = os.pipe()
        self._answers, write_answer = os.pipe()
        # Processes of the browser may still write while the folder is removed.
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        flags = (
            "--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe"
            f" --user-data-dir={self._folder.name} --hide-scrollbars about:blank"
        )
        shell = f"exec {program} {flags} 3<&{read_command} 4>&{write_answer}"
        self._process = subprocess.Popen(
            ["bash", "-c", shell], pass_fds=(read_command, write_answer),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_command)
        os.close(write_answer)
        self._rest, self._count, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Returns the result of a command. Keeps the events that come before it."""
        self._count += 1
        command: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") != self._count:
                self.events.append(answer)
            elif "error" in answer:
                raise SystemExit(f"look_at_report: {method}: {answer['error']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def evaluate(self, code: str) -> Any:
        return self.call("Runtime.evaluate", expression=code, returnByValue=True)["result"].get(
            "value"
        )

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._folder.cleanup()

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise SystemExit("look_at_report: the browser has ended")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


def show(browser: Browser, view: View) -> None:
    """Opens the window of a view, and scrolls to its part."""
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=view.width, height=view.height,
        deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if view.is_dark else "light"}
    browser.call("Emulation.setEmulatedMedia", media=view.media, features=[scheme])
    browser.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    target = f"document.getElementById({view.part!r})" if view.part else "document.body"
    browser.evaluate(f"{target}.scrollIntoView()")


def take(browser: Browser, path: Path) -> None:
    data = browser.call("Page.captureScreenshot", format="png")["data"]
    path.write_bytes(base64.b64decode(data))
    print(f"{path}  {path.stat().st_size / 1000:.0f} kB")


# Parts that are wider than their place, and hide or scroll the rest. Long names in the network
# end with an ellipsis, narrow rows have only the color of a layout, and tables of fronts are text.
CUT_PARTS = r"""[...document.querySelectorAll("body *")]
    .filter((e) => !e.matches(".hidden, .name, .name *, .rows .chip, pre:not(.commands)"))
    .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1
                   && getComputedStyle(e).overflowX !== "visible")
    .map((e) => `${e.tagName} ${e.getAttribute("class")}: ${e.textContent}`)
    .map((text) => text.replace(/\s+/g, " ").slice(0, 60)).slice(0, 5)"""


def problems_of_view(browser: Browser, view: View) -> list[str]:
    """Returns lines if the page is wider than the window, or if a part is cut off."""
    wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth")
    found = [f"{view.name}: the page is {wide} pixels wider than the window"] if wide > 0 else []
    return found + [f"{view.name}: cut off: {part}" for part in browser.evaluate(CUT_PARTS)]


def problems_of_keys(browser: Browser) -> list[str]:
    """Returns a line for each thing that the keyboard cannot do."""
    found = []
    browser.evaluate("document.querySelector('.rows a').focus()")
    if browser.evaluate("document.getElementById('inspector').hidden"):
        found.append("the focus on a row does not show its details")
    before = browser.evaluate("document.activeElement.dataset.op")
    browser.press("Tab")
    if browser.evaluate("document.activeElement.dataset.op") == before:
        found.append("Tab does not move from row to row")
    browser.press("Escape")
    if not browser.evaluate("document.getElementById('inspector').hidden"):
        found.append("Escape does not close the details")
    first = "document.querySelector('.times tbody th').textContent"
    fastest = browser.evaluate(first)
    browser.evaluate("document.querySelectorAll('.times thead button')[3].click()")
    browser.evaluate("document.querySelectorAll('.times thead button')[3].click()")
    if browser.evaluate(first) == fastest:
        found.append("a heading does not sort the table")
    return found


def problems_of_console(browser: Browser) -> list[str]:
    """Returns a line for each message of the console, and for each request of another file."""
    found = []
    for event in browser.events:
        method, params = event.get("method", ""), event.get("params", {})
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            found.append(f"console: {json.dumps(params)[:300]}")
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                found.append(f"request of {url}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks a report in a browser.")
    parser.add_argument("report", type=Path)
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="where screenshots go")
    args = parser.parse_args()
    if not args.report.is_file():
        raise SystemExit(f"look_at_report: there is no file {args.report}")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("look_at_report: there is no chromium: apt-get install chromium")
    browser = Browser(program)
    try:
        browser.call("Page.navigate", url=args.report.resolve().as_uri())
        time.sleep(1.0)
        found = []
        for view in VIEWS:
            show(browser, view)
            found += problems_of_view(browser, view)
            if args.images is not None:
                take(browser, args.images / f"{view.name}.png")
        show(browser, VIEWS[1])
        found += problems_of_keys(browser)
        if args.images is not None:
            browser.evaluate("document.querySelectorAll('.rows a')[5].click()")
            take(browser, args.images / "report_details.png")
        found += problems_of_console(browser)
    finally:
        browser.close()
    print("\n".join(found) if found else "look_at_report: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
