from __future__ import annotations

import pytest

from meshd.errors import SlurmError
from meshd.slurm.conf import parse, quote

ODD = (
    "# head of the file\r\n"
    "clusterNAME = lab # a comment\r\n"
    "SlurmctldParameters=enable_configless,\\\n"
    "idle_on_node_suspend\n"
    "NodeName=DEFAULT\tCPUs=4  State=UNKNOWN\n"
    'NodeName=n[1-2] Gres=gpu:2 \\  \n   Reason="two words" # why\n'
    "PartitionName=p Nodes=ALL\n"
    "include  more.conf\n"
    "TreeWidth=1\nTreeWidth=2\n"
    "Epilog=/a\\#b"
)


def test_render_gives_back_what_was_read():
    assert parse(ODD).render() == ODD


def test_values_are_found_in_any_case_and_the_last_is_in_force():
    conf = parse(ODD)
    assert conf.get("ClusterName") == "lab"
    assert conf.get("treewidth") == "2"
    assert conf.get("epilog") == "/a#b"
    assert conf.list_of("slurmctldparameters") == ("enable_configless", "idle_on_node_suspend")
    assert conf.get("State") is None, "a field of a record is no setting"


def test_records_take_the_whole_continued_line():
    assert parse(ODD).records("nodename")[1] == {"nodename": "n[1-2]", "gres": "gpu:2", "reason": "two words"}


def test_defaults_fill_later_records():
    assert parse(ODD).records_resolved("NodeName") == (
        {"nodename": "n[1-2]", "cpus": "4", "state": "UNKNOWN", "gres": "gpu:2", "reason": "two words"},
    )


def test_includes_are_listed_and_added_once():
    conf = parse(ODD).with_include("nodes.conf")
    assert conf.includes() == ("more.conf", "nodes.conf")
    assert conf.with_include("nodes.conf") == conf


def test_amending_in_place_keeps_comment_spacing_and_line_ending():
    assert parse(ODD).with_value("ClusterName", "mesh").render() == ODD.replace("= lab #", "= mesh #")


def test_amending_takes_the_occurrence_in_force():
    assert parse(ODD).with_value("TreeWidth", "65533").render() == ODD.replace("TreeWidth=2", "TreeWidth=65533")


def test_an_item_of_the_same_name_is_replaced():
    assert parse("A=x,b=1,c\n").with_list_item("A", "b=2").render() == "A=x,c,b=2\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "K=v\n"),
        ("a=1", "a=1\nK=v\n"),
        ("a=1\r\n", "a=1\r\nK=v\r\n"),
        ("a=1 \\", "a=1 \\\n\nK=v\n"),
        ("a=1 \\\n", "a=1 \\\n\nK=v\n"),
        ("# c \\", "# c \\\nK=v\n"),
    ],
)
def test_an_appended_line_always_stands_on_its_own(text, expected):
    conf = parse(text).with_value("K", "v")
    assert conf.render() == expected
    assert conf.get("K") == "v"


def test_values_with_spaces_and_hashes_are_quoted():
    assert parse(parse("").with_value("K", "a # b").render()).get("K") == "a # b"


@pytest.mark.parametrize("value", ["a\nSlurmUser=root", 'a" b', "a\rb", "a\0b"])
def test_what_cannot_be_written_is_refused(value):
    with pytest.raises(SlurmError):
        quote(value)


def test_a_line_that_is_not_understood_is_kept():
    text = "!!! what = is this\n=\n==x\nKey\n"
    assert parse(text).render() == text


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("MaxJobCount=5 \\ # x\n", "MaxJobCount", "5"),
        ("A=x,\\ # the rest\ny\n", "A", "x,y"),
        ("# c \\\nA=1\n", "A", "1"),
        ("A=1\0 2\nB=3\n", "A", "1"),
        ('A="one\n', "A", '"one'),
        ('A="one two"x\n', "A", '"one'),
        ("A=1\u00a02\n", "A", "1\u00a02"),
        ("\vA = 1\n", "A", "1"),
    ],
)
def test_reading_goes_by_slurms_own_order_of_steps(text, key, expected):
    assert parse(text).get(key) == expected


def test_a_line_after_a_comment_that_follows_a_backslash_stands_on_its_own():
    text = "A=1 \\ # x\n"
    assert parse(text).with_value("K", "v").render() == text + "\nK=v\n"


def test_include_starts_in_the_first_column():
    assert parse("Include a\n  Include b\ninclude\tc # d\n").includes() == ("a", "c")


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("A=1\n", ""),
        ("A=1 # comment\n", ""),
        ("NodeName=a CPUs=1\tState=UNKNOWN \n", ""),
        ("A=1 B=2\n", "B=2"),
        ("A=\n", "A="),
        ("hello world\n", "hello world"),
        ("  Include a\n", "Include a"),
        ("Include a b\n", "b"),
        ("NodeName=a CPUs=1 what\n", "what"),
        ("\ufeffA=1\n", "\ufeffA=1"),
        ("A=1 \\ # x\nB=2\n", "B=2"),
    ],
)
def test_what_slurm_stumbles_over_is_known(text, unread):
    assert parse(text).lines[0].unread == unread
