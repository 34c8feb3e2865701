"""The script behind docs/site/pictures makes the pictures that the documents show."""

from __future__ import annotations

import re
from pathlib import Path

from tests import documents
from tests.browser import pictures

PNG = b"\x89PNG\r\n\x1a\n"


async def test_the_pictures_of_the_documents_can_be_made_anew(tmp_path: Path) -> None:
    await pictures.main(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made.keys() == {path.name for path in (documents.ROOT / "docs/pictures").iterdir()}
    assert all(content.startswith(PNG) and len(content) > 20_000 for content in made.values()), "none is empty"
    texts = [(documents.ROOT / page).read_text("utf-8") for page in documents.PAGES]
    assert {name for text in texts for name in re.findall(r"pictures/([\w-]+\.png)\)", text)} == made.keys()
