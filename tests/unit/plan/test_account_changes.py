"""What is believed of accounts that a read did not show."""

from __future__ import annotations

from dataclasses import replace

from meshd.plan.account_changes import CUT_OFF_S, Known, Seen, after
from meshd.plan.accounts import GROUPS_MAX, USERS_MAX, Accounts, Group, Range, User

NOBODY = Seen(frozenset())


def user(name: str, uid: int, *, local: bool = True, gid: int = 2000) -> User:
    return User(name, uid, gid, "", f"/home/{name}", "/bin/sh", local=local)


def accounts(*users: User, groups: tuple[Group, ...] = ()) -> Accounts:
    return Accounts(users, groups)


def names(known: Known) -> list[str]:
    return [one.name for one in known.accounts.users]


LOCAL = [user(f"u{at}", 1000 + at) for at in range(12)]
ANNA, BEN = user("anna", 200_001, local=False), user("ben", 200_002, local=False)


def test_a_removed_local_user_is_gone_at_once() -> None:
    known = after(Known(accounts(*LOCAL)), accounts(*LOCAL[1:]), NOBODY, 5.0)
    assert names(known) == [one.name for one in LOCAL[1:]]
    assert not known.held


def test_few_users_may_all_go() -> None:
    assert names(after(Known(accounts(*LOCAL[:4])), accounts(), NOBODY, 5.0)) == []


def test_a_passwd_that_was_cut_off() -> None:
    first = Known(accounts(*LOCAL, groups=(Group("lab", 2000, ("u1", "u9")),)))
    known = after(first, accounts(*LOCAL[:4], groups=(Group("lab", 2000, ("u1",)),)), NOBODY, 5.0)
    assert known.accounts.users == first.accounts.users
    assert known.accounts.groups == first.accounts.groups
    assert len(known.held) == 8 and not known.held_network
    assert names(after(known, accounts(*LOCAL[:4]), NOBODY, 4.0 + CUT_OFF_S)) == names(first)
    believed = after(known, accounts(*LOCAL[:4]), NOBODY, 5.0 + CUT_OFF_S)
    assert len(believed.accounts.users) == 4 and not believed.held
    assert not after(known, accounts(*LOCAL), NOBODY, 60.0).held


def test_a_directory_service_that_shows_nobody_is_away() -> None:
    known = Known(accounts(LOCAL[0], ANNA, BEN))
    for at in range(5):
        known = after(known, accounts(LOCAL[0]), NOBODY, 1e6 * at)
    assert names(known) == ["u0", "anna", "ben"] and known.held_network
    assert names(after(known, accounts(LOCAL[0], BEN), NOBODY, 1e7)) == ["u0", "ben"]


def test_who_is_still_in_the_group_was_not_removed() -> None:
    known = Known(accounts(ANNA, BEN))
    assert names(after(known, accounts(BEN), Seen(frozenset(), frozenset({"anna", "ben"})), 1.0)) == ["anna", "ben"]
    assert names(after(known, accounts(BEN), Seen(frozenset(), frozenset({"ben"})), 1.0)) == ["ben"]
    assert names(after(known, accounts(), Seen(frozenset(), frozenset()), 1.0)) == []
    primary = Known(accounts(user("dora", 300_000, local=False, gid=77)))
    assert names(after(primary, accounts(), Seen(frozenset(), frozenset(), 77), 1.0)) == ["dora"]


def test_an_account_that_is_no_user_any_more_is_gone() -> None:
    seen = Seen(frozenset({"anna", "ben"}), frozenset({"anna", "ben"}))
    assert names(after(Known(accounts(ANNA, BEN)), accounts(BEN), seen, 1.0)) == ["ben"]


def test_a_number_that_another_has_now() -> None:
    known = after(Known(accounts(ANNA)), accounts(user("new", ANNA.uid)), NOBODY, 1.0)
    assert names(known) == ["new"]


def test_nothing_known_before() -> None:
    assert after(None, accounts(ANNA), NOBODY, 1.0) == Known(accounts(ANNA))


def test_what_is_held_keeps_to_the_bounds_of_a_list() -> None:
    """A node refuses a list that is too long, or two users of one range: then it would take no new user at all."""
    many = [user(f"u{at}", 20_000 + at, gid=20_000 + at) for at in range(USERS_MAX)]
    groups = tuple(Group(one.name, one.gid) for one in many)
    late = user("late", 1001, gid=1001)
    known = after(Known(accounts(*many, groups=groups)), accounts(late, groups=(Group("late", 1001),)), NOBODY, 5.0)
    assert len(known.accounts.users) == USERS_MAX and late in known.accounts.users
    assert len(known.accounts.groups) <= GROUPS_MAX and Group("late", 1001) in known.accounts.groups


def test_what_is_held_shares_no_subordinate_numbers() -> None:
    mine, next_one = Range(700_000_000, 65_536), Range(700_065_536, 65_536)
    anna, ben = replace(ANNA, subuid=mine, subgid=mine), replace(BEN, subuid=next_one, subgid=next_one)
    late = replace(LOCAL[0], subuid=Range(700_000_005, 65_531), subgid=Range(1_000_000, 5))
    known = after(Known(accounts(anna, ben)), accounts(late), NOBODY, 5.0)
    by_name = {one.name: one for one in known.accounts.users}
    assert by_name["anna"].subuid is None and by_name["anna"].subgid == mine
    assert by_name["ben"] == ben and by_name["u0"] == late
