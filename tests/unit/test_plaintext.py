"""Text of others is fit for terminals, logs and the journal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from meshd.plaintext import counted, ending, plain, plain_json, plain_lines


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


NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(("count", "text"), [(0, "0 nodes"), (1, "1 node"), (12, "12 nodes")])
def test_a_number_with_its_noun(count: int, text: str) -> None:
    assert counted(count, "node") == text


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (timedelta(days=9, hours=3), "ends on 2026-03-10, in 9 days"),
        (timedelta(hours=48), "ends on 2026-03-03, in 2 days"),
        (timedelta(hours=47, minutes=59), "ends on 2026-03-03 11:59 UTC, in 47 hours"),
        (timedelta(hours=1), "ends on 2026-03-01 13:00 UTC, in 1 hour"),
        (timedelta(minutes=5), "ends on 2026-03-01 12:05 UTC, in less than an hour"),
        (timedelta(0), "ended on 2026-03-01 12:00 UTC"),
        (timedelta(days=-2), "ended on 2026-02-27 12:00 UTC"),
    ],
)
def test_an_end_is_told_the_more_exactly_the_nearer_it_is(left: timedelta, text: str) -> None:
    assert ending(NOW + left, NOW) == text
