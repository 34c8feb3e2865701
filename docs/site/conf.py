"""The documents as a site: `docs/site/build`. The pages are the files that people also read on their own."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["name"]
project_copyright = ""
root_doc = "docs/site/index"
extensions = ["myst_parser"]
include_patterns = [
    "docs/site/index.md",
    "docs/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "recipes/README.md",
    "recipes/*/README.md",
]

# Anchors as GitHub makes them, of all headings: links between the files work in both places.
myst_heading_anchors = 6
nitpicky = True
# Logs and commands are no program text of a language that could be coloured.
highlight_language = "none"

html_theme = "furo"
html_title = project
html_show_sphinx = False
html_copy_source = False
# Nothing is fetched from elsewhere: Furo's fonts are the reader's own, and there is no script of others.
html_theme_options = {"top_of_page_buttons": []}
