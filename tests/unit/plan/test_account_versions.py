"""Since when each user is as now, and which machines have them so."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from meshd.daemon.nodes.users_on_nodes import DIGESTS_MAX, UsersOnNodes
from meshd.model.node_settings import ReportedSection, SectionState
from meshd.plan.account_versions import FIRST, next_version, versions_of
from meshd.plan.accounts import Accounts, Group, User, digest
from tests.tiers import bounded

NOW = datetime(2026, 1, 1, tzinfo=UTC)
APPLIED, WORKING, FAILED = SectionState.APPLIED, SectionState.WORKING, SectionState.FAILED


def made(shells: dict[int, str], lab: frozenset[int] = frozenset()) -> Accounts:
    """Users by number with their shells, and a group of some of them."""
    users = tuple(User(f"u{uid}", uid, uid, "", f"/home/u{uid}", shell) for uid, shell in sorted(shells.items()))
    group = Group("lab", 5000, tuple(f"u{uid}" for uid in sorted(lab & shells.keys())))
    return Accounts(users, (group,) if group.members else ())


def said(accounts: Accounts, state: SectionState = APPLIED) -> ReportedSection:
    return ReportedSection(digest(accounts), state, NOW)


LISTS = st.builds(
    made, st.dictionaries(st.integers(1000, 1004), st.sampled_from(["/bin/sh", "/bin/bash"])),
    st.frozensets(st.integers(1000, 1004)),
)  # fmt: skip


def user(accounts: Accounts, uid: int) -> tuple[User | None, bool]:
    one = next((one for one in accounts.users if one.uid == uid), None)
    return one, one is not None and any(one.name in group.members for group in accounts.groups)


@settings(max_examples=bounded(200, 5_000))
@given(st.lists(LISTS, min_size=1, max_size=6), st.data())
def test_a_machine_has_a_user_exactly_when_it_holds_the_present_one(lists: list[Accounts], data: st.DataObject) -> None:
    nodes = UsersOnNodes()
    held = data.draw(st.integers(0, len(lists) - 1))
    for at, accounts in enumerate(lists):
        nodes.changed(accounts)
        nodes.sent_as(digest(accounts))
        if at == held:
            nodes.told("m", said(accounts))
        elif at > held:
            nodes.told("m", said(accounts, data.draw(st.sampled_from([WORKING, FAILED]))))
    for uid in range(1000, 1005):
        now = user(lists[-1], uid)
        if now[0] is None:
            assert nodes.has("m", uid), "nobody's number holds nothing up"
        elif nodes.has("m", uid):
            assert user(lists[held], uid) == now
        else:
            assert any(user(one, uid) != now for one in lists[held:]), "unchanged since: it is there"


def test_what_is_not_known_of_a_machine() -> None:
    nodes, first, second = UsersOnNodes(), made({1000: "/bin/sh"}), made({1000: "/bin/sh", 1001: "/bin/sh"})
    assert nodes.has("m", 1000), "no accounts are known"
    nodes.changed(None)
    nodes.changed(first)
    nodes.sent_as(digest(first))
    assert nodes.has("m", 1000), "its agent has not called since meshd began"
    nodes.changed(second)
    nodes.sent_as(digest(second))
    assert nodes.has("m", 1000) and not nodes.has("m", 1001)
    nodes.told("m", None)
    nodes.told("m", said(second, WORKING))
    assert not nodes.has("m", 1001)
    nodes.told("m", said(second))
    assert nodes.has("m", 1001)
    nodes.told("m", said(made({})))
    assert not nodes.has("m", 1000), "accounts of another life of meshd"
    nodes.unknown_on("old")
    assert nodes.has("old", 1001), "an agent that is too old to say"
    nodes.keep({"old"})
    assert nodes.has("m", 1000) and nodes.has("old", 1001)


def test_digests_are_bounded() -> None:
    nodes = UsersOnNodes()
    lists = [made(dict.fromkeys(range(1000, 1000 + n), "/bin/sh")) for n in range(1, DIGESTS_MAX + 3)]
    for accounts in lists:
        nodes.changed(accounts)
        nodes.sent_as(digest(accounts))
    nodes.told("m", said(lists[-2]))
    assert nodes.has("m", 1000 + DIGESTS_MAX) and not nodes.has("m", 1000 + DIGESTS_MAX + 1)
    nodes.told("m", said(lists[0]))
    assert not nodes.has("m", 1000)


def test_the_same_accounts_are_the_same_version() -> None:
    first = versions_of(made({1000: "/bin/sh"}))
    assert first.number == FIRST and next_version(first, made({1000: "/bin/sh"})) is first
    other = next_version(first, made({1000: "/bin/sh"}, frozenset({1000})))
    assert other.since == {1000: other.number}, "another group of the user"
