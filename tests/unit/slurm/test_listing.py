"""What squeue and sacct print, with fields in which users have written what they like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.errors import SlurmError
from meshd.slurm.listing import SEPARATOR, lines_of, new_mark, squeue_env

MARK, OTHER = f"{SEPARATOR}x1{SEPARATOR}", f"{SEPARATOR}x2{SEPARATOR}"
TEXTS = st.text(st.sampled_from([*"ab1 |,", "\n", "\r", SEPARATOR, "\x1b", "\u2028", "é"]), max_size=12)


def printed(records: list[list[str]], mark: str = MARK) -> str:
    return "".join("".join(f"{field}{mark}" for field in record) + "\n" for record in records)


@given(st.lists(st.lists(TEXTS, min_size=3, max_size=3), max_size=4))
def test_each_record_is_one_line_and_each_field_one_field(records: list[list[str]]) -> None:
    lines = lines_of(printed(records), MARK, 3).split("\n")[:-1]
    ends = str.maketrans(dict.fromkeys(f"\n\r{SEPARATOR}", " "))
    assert [line.split(SEPARATOR)[:-1] for line in lines] == [[f.translate(ends) for f in one] for one in records]


@pytest.mark.parametrize(
    "text",
    [
        "\n",
        "slurm_load_jobs error: Unable to contact slurm controller\n",
        printed([["1", "ann", "a"]])[:-1],
        printed([["1", "ann", "a"], ["2", "bob"]]),
        printed([["1", "ann", "a"]]) + "slurm_load_jobs error: timed out\n",
        printed([["1", "ann", "a"]], OTHER),
        printed([["1", "ann", "a"]]).replace("\n", "") * 2 + "\n",
    ],
)
def test_what_is_no_listing_is_an_error(text: str) -> None:
    with pytest.raises(SlurmError):
        lines_of(text, MARK, 3)


def test_the_mark_is_another_one_each_time_and_on_no_command_line() -> None:
    assert new_mark() != new_mark()
    assert squeue_env(["JobArrayID", "Account"], "|x") == {"SQUEUE_FORMAT2": "JobArrayID:|x,Account:|x"}
