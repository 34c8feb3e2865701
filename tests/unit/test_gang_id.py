"""The id of a gang says the name of each machine, whatever slots are free."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.gang_id import GANG_ID_MAX_CHARS, gang_id, gang_machines, machine_at, ranges_of
from meshd.model.ids import UNIQUE_ALPHABET, machine_name, parse_machine_name, slot_name

EVERY_CLOUD_TAKES = re.compile(r"[-a-z0-9:+]{1,200}")

pools = st.sampled_from(["a100", "h100", "a-b-1", "x9", "cpu-2-3"])
uniques = st.text(UNIQUE_ALPHABET, min_size=6, max_size=6)


@given(
    pool=pools, cluster=st.sampled_from(["lab", "my-lab-2"]), unique=uniques,
    slots=st.sets(st.integers(1, 9999), min_size=1, max_size=60),
)  # fmt: skip
def test_an_id_has_all_names_in_the_order_of_their_slots(pool: str, cluster: str, unique: str, slots: set[int]) -> None:
    names = [machine_name(cluster, slot_name(pool, slot), unique) for slot in sorted(slots)]
    gang = gang_id(names)
    if not gang:
        assert len(slots) > 30  # numbers of four digits without a gap between two of them would fit
        return
    assert EVERY_CLOUD_TAKES.fullmatch(gang)
    assert len(gang) <= GANG_ID_MAX_CHARS
    assert gang_machines(gang) == tuple(names)
    assert gang_id(list(reversed(names))) == gang
    assert [machine_at(gang, index) for index in range(-1, len(names) + 1)] == ["", *names, ""]
    assert {parse_machine_name(cluster, name) for name in gang_machines(gang)} == {
        slot_name(pool, slot) for slot in slots
    }
    assert parse_machine_name(cluster, gang) is None


def test_ranges_are_short() -> None:
    gang = gang_id([f"lab-h100-{slot}-k7q2mz" for slot in (*range(1, 501), 700)])
    assert gang == "lab-h100-k7q2mz:1-500+700"
    assert ranges_of(gang) == "1-500+700"


@pytest.mark.parametrize(
    "names",
    [
        ["lab-a-1-k7q2mz", "lab-a-2-abcdef"],
        ["lab-a-1-k7q2mz", "lab-b-2-k7q2mz"],
        ["lab-a-1-k7q2mz", "lab-a-1-k7q2mz"],
        ["lab-a-1-k7q2mz", "odd"],
        [],
    ],
)
def test_machines_that_differ_otherwise_are_no_gang(names: list[str]) -> None:
    assert gang_id(names) == ""


@given(st.text(max_size=300) | st.from_regex(r"lab-a-abcdef:[0-9+-]{0,40}", fullmatch=True))
def test_any_text_is_read_within_bounds(text: str) -> None:
    assert len(gang_machines(text)) <= 5000
    assert machine_at(text, 3) == "" or machine_at(text, 3) in gang_machines(text)


@pytest.mark.parametrize(
    "text", ["lab-a-x:9-1", "lab-a-x:1-6000", "lab-a-x:1-4000+1-4000", "lab-a-x:", "lab-a-x:1-", ""]
)
def test_what_is_no_id_has_no_machines(text: str) -> None:
    assert gang_machines(text) == ()
