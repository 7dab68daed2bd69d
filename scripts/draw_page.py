"""The picture of the HTML page in docs: a screenshot of the page over the committed rows, by Chromium.

    python scripts/draw_page.py

The file names the rows that it shows, so that a test can tell when they have changed.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from kvbench.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "results" / "reference" / "main.parquet"
PICTURE = ROOT / "docs" / "images" / "page.png"
OPTIONS = ("--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=9000", "--window-size=1280,820")


def rows_shown() -> str:
    """SHA-256 of the committed rows."""
    return hashlib.sha256(ROWS.read_bytes()).hexdigest()


def draw(browser: str) -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "page.html"), Path(folder, "page.png")
        main(["report", "html", "--results", str(ROWS), "--out", str(page)])
        subprocess.run([browser, *OPTIONS, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
        stamp = PngInfo()
        stamp.add_text("rows", rows_shown())
        with Image.open(shot) as image:
            image.convert("RGB").quantize(128).save(PICTURE, pnginfo=stamp, optimize=True)


if __name__ == "__main__":
    if (browser := shutil.which("chromium")) is None:
        print(f"{PICTURE.relative_to(ROOT)} stays as it is: there is no chromium", file=sys.stderr)
    else:
        draw(browser)
