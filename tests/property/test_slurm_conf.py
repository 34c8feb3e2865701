from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshd.errors import SlurmError
from meshd.slurm.conf import parse

PIECES = [
    "A", "b.c", "=", " = ", "1", '"', '"x y"', "#", "\\", "\\#", "\n", "\r\n", "\t", " ", "NodeName=n1", "Include f",
    "Key=old", "KEY = older ", ",", "\\\n", "\\ \n", "\x0b", "\u2028", "é", "State=DOWN",
]  # fmt: skip
conf_texts = st.one_of(st.text(max_size=200), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
values = st.text("abcXYZ019-_.,:/ #=\\", max_size=12)


@given(conf_texts)
def test_render_is_the_inverse_of_parse(text):
    assert parse(text).render() == text


@given(conf_texts, values)
def test_a_value_that_was_set_is_in_force_and_setting_it_again_changes_nothing(text, value):
    once = parse(text).with_value("Key", value)
    again = parse(once.render())
    assert again.get("KEY") == value
    assert again.with_value("key", value).render() == once.render()


@given(conf_texts, values)
def test_setting_a_value_touches_nothing_else(text, value):
    before = parse(text)
    after = before.with_value("Key", value)
    at = [i for i, line in enumerate(before.lines) if not line.is_record and line.value("Key") is not None]
    if not at:
        assert after.render().startswith(text)
        return
    raw_before = [line.raw for line in before.lines]
    raw_after = [line.raw for line in after.lines]
    assert raw_before[: at[-1]] == raw_after[: at[-1]]
    assert raw_before[at[-1] + 1 :] == raw_after[at[-1] + 1 :]
    changed_before, changed_after = before.lines[at[-1]], after.lines[at[-1]]
    pair = [p for p in changed_before.pairs if p.key.lower() == "key"][-1]
    assert changed_after.raw.startswith(changed_before.raw[: pair.start])
    assert changed_after.raw.endswith(changed_before.raw[pair.end :])


@given(conf_texts)
def test_an_include_is_added_once_and_only_appended(text):
    once = parse(text).with_include("nodes.conf")
    assert "nodes.conf" in parse(once.render()).includes()
    assert parse(once.render()).with_include("nodes.conf").render() == once.render()
    assert once.render().startswith(text)


@given(conf_texts, st.sampled_from(["item", "name=1", "name=2"]))
def test_a_list_item_is_added_once(text, item):
    if '"' in (parse(text).get("Key") or "") and item not in parse(text).list_of("Key"):
        with pytest.raises(SlurmError):
            parse(text).with_list_item("Key", item)
        return
    once = parse(text).with_list_item("Key", item)
    assert parse(once.render()).list_of("Key").count(item) >= 1
    assert parse(once.render()).with_list_item("Key", item).render() == once.render()
