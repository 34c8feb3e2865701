"""Tables on narrow and wide terminals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshd.cli.render.table import PROSE_MIN, Table
from tests.unit.cli.helpers import drawn

HEADERS = ("NAME", "SIZE", "WHERE", "NOTE")
ROWS = [
    ("lab-h100-1-k7q2mz", "8 GiB", "us-east-1a", "it boots: aws has it as i-0abc, and it is waited for"),
    ("lab-h100-2-aaaaaa", "16 GiB", "eu-west-1", ""),
]


def test_all_is_shown_where_it_fits() -> None:
    lines = drawn(120, Table(HEADERS, ROWS, optional=("SIZE", "WHERE")))
    assert lines[0] == "NAME               SIZE    WHERE       NOTE"
    assert lines[1].endswith("i-0abc, and it is waited for")
    assert len(lines) == 3


def test_the_least_important_columns_go_first_and_are_named() -> None:
    lines = drawn(60, Table(HEADERS, ROWS, optional=("SIZE", "WHERE")))
    assert lines[0] == "NAME               WHERE       NOTE"
    assert "SIZE" in lines[-1] and "WHERE" not in lines[-1]
    lines = drawn(50, Table(HEADERS, ROWS, optional=("SIZE", "WHERE")))
    assert lines[0] == "NAME               NOTE"
    assert "SIZE, WHERE" in lines[-1]


def test_a_table_that_does_not_fit_is_folded_never_cut() -> None:
    lines = drawn(20, Table(HEADERS, ROWS))
    found = "".join("".join(lines).split())
    assert max(len(line) for line in lines) <= 20
    assert all(char in found for char in "k7q2mz")


def test_a_wide_character_takes_two_columns() -> None:
    table = Table(("A", "B", "C"), [("模型", "x", "y")], optional=("B",))
    assert table.left_out(4 + 2 + 1 + 2 + 1) == []
    assert table.left_out(4 + 2 + 1 + 2) == ["B"]


words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)


@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=5), st.integers(30, 140))
def test_only_the_last_column_breaks_words_where_they_fit(rows: list[tuple[str, str, str]], width: int) -> None:
    table = Table(("FIRST", "SECOND", "LAST"), rows, optional=("SECOND",))
    gone = table.left_out(width)
    if width < 12 + 2 + 12 + 2 + PROSE_MIN:
        return
    text = "\n".join(drawn(width, table))
    assert gone == []
    assert all(first in text and second in text for first, second, _ in rows)
