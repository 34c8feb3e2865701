"""Nobody's text steers a terminal: not in tables, not in JSON, not in a log."""

from __future__ import annotations

import io
import json

import pytest
import structlog

from meshd.config import LogSettings
from meshd.obs.log import set_up
from meshd.runtime.terminal import clean, clean_line, json_clean

HOSTILE = [
    "\x1b[2J", "\x9b2J", "\x90q", "\x9d0;x\x9c", "\x07", "\x7f", "\x85", "\u202e", "\u2066", "\u2028", "\u200b",
    "\ufeff", "\x00", "\r", "\x08", "\U000e0001",
]  # fmt: skip


@pytest.mark.parametrize("character", HOSTILE)
def test_no_such_character_comes_through(character: str) -> None:
    text = f"a{character}b"
    assert clean(text).isprintable()
    document = json_clean(json.dumps({"x": text, "é": "ü"}, ensure_ascii=False, indent=2))
    assert all(c.isprintable() or c == "\n" for c in document)
    assert json.loads(document) == {"x": text, "é": "ü"}, "the same meaning"


def test_what_people_write_stays() -> None:
    assert clean("grün, 東京, a\tb\nc") == "grün, 東京, a\tb\nc"
    assert clean_line("a\nb\tc") == "a b c"
    assert json_clean('{"a": "grün"}') == '{"a": "grün"}'


def test_the_log_on_a_terminal() -> None:
    stream = io.StringIO()
    set_up(LogSettings(format="pretty"), stream=stream, env={})
    structlog.get_logger("x").warning("refused", reason="\x1b[2J\x9b2J\u202e\nfake line")
    assert all(c.isprintable() or c == "\n" for c in stream.getvalue())
    assert stream.getvalue().count("\n") == 1
