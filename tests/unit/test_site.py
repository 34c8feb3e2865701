"""The site of the documents refuses what leads nowhere, and fetches nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOOD = "# Page\n\n## Some words\n\n[there](../README.md#more-of-it), [here](#some-words)\n"


def build(directory: Path, page: str, more: str = "") -> tuple[int, str]:
    """Build a small tree with the site's own settings; the exit code and what was said."""
    site = directory / "docs/site"
    site.mkdir(parents=True)
    shutil.copy(ROOT / "docs/site/conf.py", site)
    shutil.copy(ROOT / "pyproject.toml", directory)
    (site / "index.md").write_text(f"# Site\n\n```{{toctree}}\n../../README\n../page\n{more}```\n")
    (directory / "README.md").write_text("# Read me\n\n## More of it\n\n[page](docs/page.md)\n")
    (directory / "docs/page.md").write_text(page)
    argv = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", str(site)]
    done = subprocess.run(
        [*argv, str(directory), str(directory / "out")], capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr


def test_a_good_tree_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    code, said = build(tmp_path, GOOD)
    assert code == 0, said
    pages = "".join(file.read_text() for file in (tmp_path / "out").rglob("*.html"))
    assert "Some words" in pages
    fetched = re.findall(r"<(?:script|img|iframe)[^>]*src=\"([^\"]+)|<link[^>]*href=\"([^\"]+)", pages)
    assert fetched and not [one for pair in fetched for one in pair if re.match(r"(https?:)?//", one)]
    styles = "".join(file.read_text() for file in (tmp_path / "out").rglob("*.css"))
    assert not re.findall(r"@import|url\(['\"]?(?:https?:)?//", styles)


def test_links_that_lead_nowhere_and_a_page_that_the_navigation_lacks_fail(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/lost.md").write_text("# Lost\n")
    links = ["nobody.md", "../README.md#no-such-title", "#no-such-heading", "../no/file.toml"]
    code, said = build(tmp_path, GOOD + "\n".join(f"[x]({link})" for link in links) + "\n")
    assert code != 0
    faults = [line for line in said.splitlines() if "WARNING" in line]
    words = ["nobody", "no-such-title", "no-such-heading", "no/file.toml", "lost.md"]
    assert [word for word in words if not any(word in fault for fault in faults)] == []
    assert len(faults) == len(words)
