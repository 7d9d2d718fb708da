"""Make the pictures of documents: make map && python docs/make_picture.py [PAGE] [PICTURE] [PART]

Open a page, by default the map (results/map.html), in headless Chromium at 1280 px, and save a part of it, by default its first
figure as docs/page.png. PART is `recall`, that figure, or `search`, the front of a search:

    recallmap dashboard hybrid_search --set budget=wide --ledger LEDGER -o search.html --no-probe
    python docs/make_picture.py search.html results/front.png search

Needs chromium, chromedriver and the `dev` extra; run it by hand when the page changed.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver

ROOT = Path(__file__).parents[1]
WIDTH = 1280  # pixels
MOST_BYTES = 200_000
PATIENCE = 60  # seconds
PARTS = {
    "recall": ("#recall", "#unfold"),
    "search": ("#search", "#search h3"),
}  # from the top of one to that of the other
EXTENT = "return [...arguments].map((one) => document.querySelector(one).getBoundingClientRect().top);"


def picture_of(page: Path, folder: Path, part: str) -> bytes:
    """A PNG of a part of a page, with its legend. Raises TimeoutError where the page does not get ready."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder}/profile",
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))
    try:
        screen = {"width": WIDTH, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        driver.get(page.as_uri())
        end = time.monotonic() + PATIENCE
        while driver.execute_script("return document.body.dataset.ready") != "true":
            if time.monotonic() > end:
                raise TimeoutError(f"{page}: not ready after {PATIENCE} s")
            time.sleep(0.1)
        top, bottom = driver.execute_script(EXTENT, *PARTS[part])
        clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1}
        made = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    finally:
        driver.quit()
    return base64.b64decode(made["data"])


def main() -> None:
    given = dict(enumerate(sys.argv[1:]))
    page = Path(given.get(0, ROOT / "results/map.html"))
    picture = Path(given.get(1, ROOT / "docs/page.png"))
    part = given.get(2, "recall")
    if part not in PARTS:
        sys.exit(f"PART: got {part!r}, expected {' or '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder:
        made = picture_of(page.resolve(), Path(folder), part)
    if len(made) > MOST_BYTES:
        sys.exit(f"{picture}: {len(made):,} bytes, may be {MOST_BYTES:,}; show less of the page")
    picture.write_bytes(made)
    print(f"{picture}: {len(made):,} bytes")


if __name__ == "__main__":
    main()
