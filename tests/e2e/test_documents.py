"""The console blocks of the documents, typed as they stand: each page is one walk. A failure names PAGE:LINE."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.e2e.lab import Lab
from tests.e2e.pages import WALKS, Page, walk

pytestmark = [
    pytest.mark.e2e, pytest.mark.any_machines, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600),
]  # fmt: skip


def _marked(page: Page) -> object:
    marks = [pytest.mark.nightly] if page.nightly else []
    return pytest.param(page, id=page.page, marks=marks)


@pytest.mark.parametrize("page", [_marked(page) for page in WALKS])
async def test_what_a_page_says_can_be_typed(lab: Lab, page: Page, figure: Callable[[str], None]) -> None:
    began = time.monotonic()
    walked = await walk(lab, page)
    figure(f"{page.page}: {len(walked.ran)} commands in {time.monotonic() - began:.1f} s")
