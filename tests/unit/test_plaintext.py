"""Text of others is fit for terminals, logs and the journal."""

from __future__ import annotations

from meshd.plaintext import plain, plain_json, plain_lines


def test_control_characters_of_both_sets_become_spaces() -> None:
    assert plain("a\x1b[31mb\x9b31m\x00c\n\r\td\x7f\x85") == "a [31mb 31m c   d  "
    assert plain("ab\u202ecd\u2066\ufeff") == "ab cd  "
    assert plain("a\ud800b").encode() == b"a b"
    assert plain("Größe 5 µs – ok") == "Größe 5 µs – ok"


def test_long_text_is_cut() -> None:
    assert len(plain("x" * 10_000)) == 2000
    assert plain("abcdef", 4) == "abc…"


def test_lines_stay_in_logs() -> None:
    assert plain_lines("a\n\tb\x1b\x9bc", 100) == "a\n\tb  c"
    assert plain_lines("abcdef", 3) == "def"


def test_json_at_any_depth() -> None:
    assert plain_json({"a\x1b": ["\x9b", {"b": "ok"}], "n": 1}) == {"a ": [" ", {"b": "ok"}], "n": 1}
