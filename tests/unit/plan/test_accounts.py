"""Which accounts of the head are users of the cluster."""

from __future__ import annotations

import pytest

from meshd.plan.accounts import (
    COMPUTED_FIRST,
    Accounts,
    Group,
    Range,
    Raw,
    Rule,
    as_lines,
    choose,
    digest,
    document,
    from_lines,
    usable_path,
)

PASSWD = [
    "root:x:0:0:root:/root:/bin/bash",
    "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin",
    "slurm:x:999:999::/nonexistent:/bin/bash",
    "nobody:x:65534:65534:nobody:/nonexistent:/bin/sh",
    "anna:x:1001:1001:Anna,,,:/home/anna:/bin/bash",
    "ben:x:1000:100::/home/ben/:",
    "backup:x:1005:1005::/srv/backup:/usr/sbin/nologin",
    "cleo:x:200001:1001:Cleo:/home/cleo:/usr/bin/zsh",
]
GROUP = [
    "root:x:0:",
    "users:x:100:",
    "docker:x:998:anna",
    "anna:x:1001:",
    "lab:x:2000:anna,ben,backup",
    "empty:x:2001:",
]


def chosen(passwd: list[str], group: list[str] | None = None, rule: Rule | None = None, **more: object) -> Accounts:
    return choose(Raw(passwd, GROUP if group is None else group, **more), rule or Rule())  # type: ignore[arg-type]


def test_users_and_their_groups() -> None:
    found = chosen(PASSWD)
    assert [(user.name, user.uid, user.gid, user.shell) for user in found.users] == [
        ("ben", 1000, 100, "/bin/sh"), ("anna", 1001, 1001, "/bin/bash"), ("cleo", 200001, 1001, "/usr/bin/zsh"),
    ]  # fmt: skip
    assert found.groups == (Group("anna", 1001), Group("lab", 2000, ("anna", "ben")))
    assert found.users[0].home == "/home/ben"
    assert found.left_out == ()


def test_uid_bounds() -> None:
    assert [user.name for user in chosen(PASSWD, rule=Rule(uid_min=1001, uid_max=60_000)).users] == ["anna"]
    assert not chosen(["s:x:500:500::/home/s:/bin/sh"], rule=Rule(uid_min=1)).users


def test_group_by_membership_and_as_primary() -> None:
    found = chosen(PASSWD, rule=Rule("lab"), members=frozenset({"anna"}))
    assert [user.name for user in found.users] == ["anna"]
    primary = chosen(["dora:x:1009:2000::/home/dora:/bin/sh", *PASSWD], rule=Rule("lab"), members=frozenset())
    assert [user.name for user in primary.users] == ["dora"]


def test_what_a_directory_service_says_of_groups() -> None:
    found = chosen(PASSWD, rule=Rule("lab"), members=frozenset({"cleo"}), member_of={"cleo": [2001, 998]})
    assert found.groups == (Group("anna", 1001), Group("empty", 2001, ("cleo",)))


@pytest.mark.parametrize(
    "line",
    [
        "all:x:1010:0::/home/all:/bin/sh", "a b:x:1010:1010::/home/a:/bin/sh", "123:x:1010:1010::/home/a:/bin/sh",
        "a:x:1010:1010::home/a:/bin/sh", "a:x:1010:1010::/:/bin/sh", "a:x:1010:1010::/home/../root:/bin/sh",
        "a:x:1010:1010::/home//a:/bin/sh", "a:x:1010:1010::/home/a:/bin/s\x1bh", "a:x:1010:1010::/home/a:bash",
        "EXAMPLE\\anna:x:1010:1010::/home/a:/bin/sh", "anna:x:1010:65534::/home/a:/bin/sh",
        "other:x:1001:1001::/home/other:/bin/sh",
    ],
)  # fmt: skip
def test_left_out_and_said(line: str) -> None:
    first = [one for one in PASSWD if not one.startswith(line.partition(":")[0] + ":")]
    found = chosen([*first, line])
    assert len(found.left_out) == 1
    assert found.users == chosen(first).users


@pytest.mark.parametrize(
    "line", ["", "broken", "a:x:-5:1::/home/a:/bin/sh", "a:x:99999999999:1::/h/a:/bin/sh", "+::::::"]
)
def test_lines_that_are_no_account(line: str) -> None:
    assert chosen([*PASSWD, line]) == chosen(PASSWD)


def test_gecos_is_one_field_of_one_line() -> None:
    (user,) = chosen(["a:x:1010:1010:A\x07 B\u2028C:/home/a:/bin/sh"]).users
    assert user.gecos == "A BC"


def test_subordinate_numbers() -> None:
    lines = ["anna:100000:65536", "ben:0:65536", "cleo:165536:-1", "200001:4294900000:999999"]
    ben, anna, cleo = chosen(PASSWD, subuid=lines, subgid=["anna:300000:65536"]).users
    assert (anna.subuid, anna.subgid) == (Range(100_000, 65_536), Range(300_000, 65_536))
    for one in (ben, cleo):
        assert one.subuid == one.subgid
        assert one.subuid is not None and COMPUTED_FIRST <= one.subuid.first < 2**31


def test_computed_ranges_are_apart() -> None:
    lines = [f"u{at}:x:{1000 + at * 23_000}:1000::/home/u{at}:/bin/sh" for at in range(50)]
    firsts = [user.subuid.first for user in chosen(lines).users if user.subuid]
    assert len(set(firsts)) == 50


def test_no_range_holds_the_number_of_an_account_or_a_group() -> None:
    """In a container its owner could become that account, and read its files on the shares."""
    place = COMPUTED_FIRST + 1001 * 65_536  # anna's, by her number
    directory = [f"dora:x:{place + 5}:1001::/home/dora:/bin/sh", f"eve:x:{place + 65_536}:1001::/home/e:/sbin/nologin"]
    lines = ["anna:200000:65536", "ben:100000:65536", f"cleo:{place + 2 * 65_536}:1"]
    found = chosen([*PASSWD, *directory], [*GROUP, "big:x:100007:"], subuid=lines, subgid=lines)
    by_name = {user.name: user for user in found.users}
    numbers = [user.uid for user in found.users] + [place + 65_536]
    for user in found.users:
        assert user.subuid is not None
        assert not any(user.subuid.first <= one < user.subuid.first + user.subuid.count for one in numbers), user
    assert by_name["anna"].subuid == Range(place + 3 * 65_536, 65_536), "cleo has number 200001, the next are not free"
    assert by_name["anna"].subgid == Range(200_000, 65_536), "no group has a number in it"
    assert by_name["ben"].subuid == Range(100_000, 65_536)
    assert by_name["ben"].subgid != by_name["ben"].subuid, "a group has a number in it"


def test_digest_and_order() -> None:
    one, other = chosen(PASSWD), chosen(PASSWD[::-1], GROUP[::-1])
    assert digest(one) == digest(other)
    assert digest(one) != digest(chosen(PASSWD[:-1]))
    assert [user["name"] for user in document(one)["users"]] == ["ben", "anna", "cleo"]


def test_saved_and_read_again() -> None:
    found = chosen(PASSWD, local=frozenset({"anna", "ben"}))
    assert from_lines(as_lines(found)) == found


def test_paths() -> None:
    assert usable_path("/home/anna")
    assert not any(map(usable_path, ("", "/", "home", "/a:b", "/a/./b", "/a\nb", "/" + "a" * 300)))
