"""Chromium as Debian has it, for tests of the web page."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, async_playwright

CHROMIUM = Path("/usr/bin/chromium")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser of its own, without windows."""
    if not CHROMIUM.exists():
        raise FileNotFoundError(f"{CHROMIUM} is missing: run deploy/sandbox/setup.sh")
    # Its own sandbox does not work for root, and a container's /dev/shm is too small for it.
    words = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=words)
        try:
            yield browser
        finally:
            await browser.close()
