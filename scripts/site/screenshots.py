# SPDX-License-Identifier: BSD-3-Clause
"""Opens pages of the built site in a headless Chromium, and writes pictures of them.

    make docs && python scripts/site/screenshots.py          # into build/screenshots
    python scripts/site/screenshots.py faq.html pbqp.html

Each page is shown on a desktop and on a phone, in light and in dark colors. Fails if a page prints
an error on the browser's console, or if the search finds nothing. Needs Chromium from the
distribution; the tests do not run this.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE, PICTURES = ROOT / "build" / "site", ROOT / "build" / "screenshots"
PAGES = ("index.html", "tutorial.html", "reference/optimize-a-model.html", "migrating.html")
SIZES = {"desktop": "1280,1600", "phone": "420,1600"}
SCHEMES = {"dark": 0, "light": 1}  # Blink's numbers
CONSOLE = re.compile(r"CONSOLE.*\"(.*(?:Error|error).*)\"")


def browse(address: str, *options: str) -> tuple[str, str]:
    """Opens an address. Returns what the browser printed: the page if asked for, and its log."""
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("screenshots: chromium is missing: apt-get install chromium")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--enable-logging=stderr", "--virtual-time-budget=4000", *options, address,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return ran.stdout, ran.stderr


def take(page: str) -> list[str]:
    """Writes the pictures of a page, and returns the errors on its console."""
    found = []
    for size, pixels in SIZES.items():
        for scheme, number in SCHEMES.items():
            name = f"{page.removesuffix('.html').replace('/', '_')}_{size}_{scheme}.png"
            _, log = browse(
                (SITE / page).as_uri(),
                f"--blink-settings=preferredColorScheme={number}",
                f"--window-size={pixels}",
                f"--screenshot={PICTURES / name}",
            )
            found += [f"{page}: {text}" for text in CONSOLE.findall(log)]
            print(PICTURES / name)
    return found


def main() -> int:
    """Takes the pictures; the exit status is 1 if a page has an error."""
    parser = argparse.ArgumentParser(description="Pictures of the site, into build/screenshots.")
    parser.add_argument("pages", nargs="*", default=PAGES, help="such as faq.html")
    args = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    found = [error for page in args.pages for error in take(page)]
    dom, _ = browse((SITE / "index.html").as_uri() + "?q=winograd", "--dump-dom")
    if "md-search-result__item" not in dom:
        found.append("index.html: the search finds nothing")
    print("\n".join(found) if found else "no errors on the console; the search works")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
