"""What is believed of accounts that a read did not show."""

from __future__ import annotations

from meshd.plan.account_changes import CUT_OFF_S, Known, Seen, after
from meshd.plan.accounts import Accounts, Group, User

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
