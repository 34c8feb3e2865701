"""The account tables of a node after the head's users were merged into them, whatever the image has."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from deploy.node.meshd_node.account_merge import BLOCKS, Merged, Ours, Renumbering, between, merge
from deploy.node.meshd_node.account_tables import NAMES, Table, Tables, account, group
from deploy.node.meshd_node.account_value import Group, User, Wanted
from tests.tiers import bounded

NAME = st.sampled_from(["anna", "ben", "cleo", "dora", "ubuntu", "debian", "postgres"])
UID = st.sampled_from([110, 999, 1000, 1001, 1002, 1003, 59_999])
HEADS_UID = st.sampled_from([1000, 1001, 1002, 1003, 200_000])
ODD = st.sampled_from(["# a comment", "", "broken", "half:x:12", "x:y:z:z:z:z:z", "anna", ":x:1:1:::"])
SYSTEM = (
    "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/usr/sbin:/usr/sbin/nologin\nnobody:x:65534:65534::/:/bin/false\n"
)
SYSTEM_GROUPS = "root:x:0:\nsudo:x:27:ubuntu,anna\nnogroup:x:65534:\n"


@st.composite
def images(draw: st.DrawFn) -> Tables:
    """Tables of an image, with accounts that may be in the way, lines that nobody can read, and NIS."""
    users = draw(st.dictionaries(NAME, UID, max_size=4))
    groups = draw(st.dictionaries(NAME, UID, max_size=4))
    lines = [f"{name}:x:{uid}:{groups.get(name, uid)}::/home/{name}:/bin/bash" for name, uid in users.items()]
    rows = [f"{name}:x:{gid}:{','.join(draw(st.lists(NAME, max_size=2, unique=True)))}" for name, gid in groups.items()]
    end = draw(
        st.sampled_from([[], ["+::::::"], ["+@staff::::::", "-ben::::::"], ["+::::::", "late:x:1002:1002::/:/bin/sh"]])
    )
    passwd = SYSTEM + "".join(f"{line}\n" for line in [*lines, *draw(st.lists(ODD, max_size=2)), *end])
    group_text = SYSTEM_GROUPS + "".join(f"{line}\n" for line in [*rows, *(["+:::"] if end else [])])
    shadow = "root:*:1:0:99999:7:::\n" + "".join(f"{name}:$6$secret:1:0:99999:7:::\n" for name in users)
    more = draw(st.booleans())
    return Tables(passwd, group_text, shadow, "root:*::\n" if more else None, "ubuntu:100000:65536\n" if more else None)


@st.composite
def wishes(draw: st.DrawFn) -> Wanted:
    """The head's users and groups."""
    uids = draw(st.dictionaries(HEADS_UID, NAME, max_size=4))
    users = {name: uid for uid, name in uids.items()}
    names = st.sampled_from([*users, "gone"])
    gids = draw(st.dictionaries(HEADS_UID, st.sampled_from(["anna", "ben", "lab", "sudo"]), max_size=3))
    groups = {name: gid for gid, name in gids.items()}
    return Wanted(
        tuple(
            User(name, uid, draw(st.sampled_from([100, uid])), "", f"/home/{name}", "/bin/bash", (uid * 70_000, 65_536))
            for name, uid in users.items()
        ),
        tuple(Group(name, gid, tuple(draw(st.sets(names, max_size=2)))) for name, gid in groups.items()),
        draw(st.booleans()),
    )


def entries(tables: Tables) -> dict[str, int]:
    """Name to uid."""
    table = Table(tables.passwd, 7)
    rows = (account(table, name) for name in table.names)
    return {row.name: row.uid for row in rows if row is not None}


def check(before: Tables, wanted: Wanted, merged: Merged) -> None:
    after = merged.tables
    found, first = entries(after), entries(before)
    placed = {user.name: user.uid for user in merged.placed}
    assert placed.items() <= found.items()
    for name, uid in first.items():
        if uid < 1000 or uid == 65534:
            assert Table(before.passwd, 7).of(name) == Table(after.passwd, 7).of(name)
    for line in before.group.split("\n"):
        if line.startswith(("root:", "sudo:", "nogroup:", "+")):
            assert line in after.group.split("\n")
    numbers = [found[user.name] for user in merged.placed]
    for number in numbers:
        others = [name for name, uid in found.items() if uid == number]
        blocked = any(clash.code == BLOCKS for clash in merged.clashes)
        assert len(others) == 1 or blocked, others
    texts = Table(after.shadow or "")
    for user in merged.placed:
        (line,) = texts.of(user.name)
        assert line.split(":")[1][0] in "!*"
    groups = Table(after.group, 4)
    for name, gid in merged.ours.groups.items():
        row = group(groups, name)
        assert row is not None and row.gid == gid >= 1000
    for table in NAMES:
        text = after.text(table)
        assert text is None or text == "" or text.endswith("\n")
    lines = after.passwd.split("\n")
    nis = next((at for at, line in enumerate(lines) if line.startswith(("+", "-"))), len(lines))
    keys = [line.partition(":")[0] for line in lines]
    assert all(keys.index(name) < nis for name in placed if name not in first and name != "late")


@settings(max_examples=bounded(300, 20_000))
@given(images(), wishes(), wishes(), st.sets(UID, max_size=2))
def test_merge(image: Tables, first: Wanted, second: Wanted, busy: set[int]) -> None:
    once = merge(image, first, Ours(), busy)
    check(image, first, once)
    again = merge(once.tables, first, once.ours, busy)
    assert (again.tables, again.ours, again.moves, again.notes, again.gone) == (once.tables, once.ours, [], [], [])

    other = merge(once.tables, second, once.ours, busy)
    check(once.tables, second, other)
    assert {name for name in other.waiting if once.ours.users[name] in busy} == set(other.waiting)

    empty = merge(other.tables, Wanted(move=second.move), other.ours, set())
    assert not empty.ours.users and not empty.ours.groups
    lines = set(image.passwd.split("\n"))
    left = {line for line in empty.tables.passwd.split("\n") if line not in lines}
    moved = {move.name for one in (once, other, empty) for move in one.moves if move.of_image}
    assert {line.partition(":")[0] for line in left} <= moved


def cut(before: Tables, after: Tables, written: int) -> Tables:
    """What is there when a power cut comes after so many files."""
    torn = before
    for name in NAMES[:written]:
        text = after.text(name)
        if text is not None:
            torn = torn.with_text(name, text)
    return torn


def lines_of(tables: Tables, name: str) -> list[str]:
    """The lines of a table, in no order."""
    return sorted((tables.text(name) or "").split("\n"))


def image_of(passwd: str, group: str) -> Tables:
    """An image with these accounts and groups."""
    return Tables(SYSTEM + passwd, SYSTEM_GROUPS + group, "root:*:1:0:99999:7:::\n")


def wish(groups: dict[str, int], *users: User) -> Wanted:
    """A wish for these groups and users."""
    return Wanted(users, tuple(Group(name, gid) for name, gid in groups.items()))


BEN = image_of("ben:x:1000:1000::/home/ben:/bin/bash\n", "ben:x:1000:\n")
ANNA_OF_BEN = image_of("anna:x:1000:1000::/home/anna:/bin/bash\n", "ben:x:1000:\n")
DORA_LAST = image_of(
    "dora:x:59999:59999::/home/dora:/bin/bash\nben:x:1000:1000::/home/ben:/bin/bash\n", "dora:x:59999:\n"
)
CLEO = User("cleo", 1000, 100, "", "/home/cleo", "/bin/bash")
DORA = User("dora", 1001, 100, "", "/home/dora", "/bin/bash")


@settings(max_examples=bounded(200, 20_000))
@given(images(), wishes(), st.lists(st.integers(0, len(NAMES)), min_size=1, max_size=3))
@example(BEN, wish({"ben": 1001}), [1])  # the image's group becomes the head's, and its account follows
@example(ANNA_OF_BEN, wish({"anna": 1000}), [1])  # the group goes to a free number, and its account follows
@example(ANNA_OF_BEN, wish({"anna": 1000}), [1, 0])
@example(ANNA_OF_BEN, wish({"anna": 1000, "ben": 1001}), [1, 5])  # it goes on from there to the head's number
@example(BEN, wish({"cleo": 1000}, CLEO), [1, 1])  # account and group have one number, which becomes a user's
@example(DORA_LAST, wish({}, DORA, CLEO), [0])  # the free number becomes free only by the same merge
def test_interrupted_between_the_files(image: Tables, wanted: Wanted, written: list[int]) -> None:
    """The state is written first, then file by file, and cut off again: it ends where an undisturbed merge would."""
    whole = merge(image, wanted, Ours(), set())
    assert whole.ours.renumbering == Renumbering(), "all is done"
    torn, ours = image, Ours()
    for count in written:
        begun = merge(torn, wanted, ours, set())
        torn, ours = cut(torn, begun.tables, count), between(ours, begun)
    again = merge(torn, wanted, ours, set())
    assert again.ours.renumbering == Renumbering()
    for name in NAMES:
        assert lines_of(again.tables, name) == lines_of(whole.tables, name)
    assert again.ours == whole.ours
    back = merge(again.tables, wanted._replace(users=(), groups=()), again.ours, set())
    straight = merge(whole.tables, wanted._replace(users=(), groups=()), whole.ours, set())
    for name in ("passwd", "shadow"):
        assert lines_of(back.tables, name) == lines_of(straight.tables, name)


@settings(max_examples=bounded(100, 20_000))
@given(images(), wishes(), wishes(), st.integers(0, len(NAMES)), st.sets(UID, max_size=2))
@example(BEN, wish({}, CLEO), wish({}, CLEO._replace(name="ben")), 0, {1000})  # it becomes a user after all
def test_interrupted_and_then_something_else_is_wanted(
    image: Tables, wanted: Wanted, other: Wanted, written: int, busy: set[int]
) -> None:
    begun = merge(image, wanted, Ours(), set())
    torn, ours = cut(image, begun.tables, written), between(Ours(), begun)
    found = merge(torn, other, ours, busy)
    check(torn, other, found)
    again = merge(found.tables, other, found.ours, busy)
    assert (again.tables, again.ours, again.moves, again.notes) == (found.tables, found.ours, [], [])
    last = merge(found.tables, other, found.ours, set())
    assert last.ours.renumbering == Renumbering(), "what a process held up is done"


@given(images())
def test_nothing_wanted_changes_nothing(image: Tables) -> None:
    assert merge(image, Wanted(), Ours(), set()).tables == image
