"""A browser without a screen, for pages: what their scripts make of them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


def dom_of(address: str, profile: Path) -> str:
    """The document at an address after its scripts, without them."""
    command = [CHROMIUM or "", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *QUIET]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--dump-dom", address]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    return re.sub(r"<script.*?</script>", "", dom, flags=re.S)
