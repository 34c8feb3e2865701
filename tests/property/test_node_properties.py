"""Properties of tokens, the hosts block, admission and stage 1."""

from __future__ import annotations

import shlex
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from deploy.node.meshd_node import hosts
from meshd.bootstrap import assets, tokens
from meshd.bootstrap.stage1 import SIZE_MAX_B, Stage1, render
from meshd.errors import JoinRefused
from meshd.plan.admission import RELEASES, slurmd_window

NOW = datetime(2026, 11, 27, tzinfo=UTC)
NAMES = st.from_regex(r"\A[a-z][a-z0-9]{0,8}-[0-9]{1,3}\Z")
ADDRESSES = st.ip_addresses(v=4).map(str)
ROSTERS = st.dictionaries(NAMES, ADDRESSES, max_size=8)
LINES = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=30), max_size=8)
PRINTABLE = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=120)


@given(LINES, ROSTERS, ROSTERS)
def test_hosts_block_touches_nothing_else(lines: list[str], first: dict[str, str], second: dict[str, str]) -> None:
    own = [line for line in lines if line.strip() not in (hosts.BEGIN, hosts.END)]
    text = "".join(f"{line}\n" for line in own)
    once = hosts.with_block(text, first)
    assert once.startswith(text)
    assert hosts.with_block(once, first) == once
    assert hosts.with_block(once, {}) == text
    twice = hosts.with_block(once + "tail\n", second)
    assert twice == (hosts.with_block(text, second) + "tail\n" if first else hosts.with_block(f"{text}tail\n", second))
    for name, address in second.items():
        assert f"{address}\t{name}\n" in twice


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_tokens(one: bytes, other: bytes) -> None:
    token, second = SecretStr(one.hex()), SecretStr(other.hex())
    hashed = tokens.hash_token(token)
    assert tokens.verify(token, hashed)
    assert tokens.verify(second, hashed) == (one == other)
    assert token.get_secret_value() not in hashed
    assert len(token.get_secret_value()) <= tokens.TOKEN_MAX_CHARS


@given(
    st.sampled_from(["m", "other", ""]), st.sampled_from(["d1", "d2"]), st.sampled_from(["", "d1", "d2"]),
    st.booleans(), st.integers(-5, 5),
)  # fmt: skip
def test_who_may_join(hostname: str, device: str, bound: str, closed: bool, late_s: int) -> None:
    ticket = tokens.JoinTicket("m", "0" * 64, NOW, bound, closed=closed)
    may = hostname == "m" and bound in {"", device} and not closed and late_s < 0
    if may:
        tokens.check_join(ticket, hostname, device, NOW + timedelta(seconds=late_s))
    else:
        with pytest.raises(JoinRefused):
            tokens.check_join(ticket, hostname, device, NOW + timedelta(seconds=late_s))


@given(st.sampled_from(RELEASES), st.integers(0, 20))
def test_a_slurmctld_serves_its_own_release(release: tuple[int, int], patch: int) -> None:
    window = slurmd_window(f"{release[0]:02d}.{release[1]:02d}.{patch}")
    assert window is not None
    assert window[0] <= release == window[1]


@settings(max_examples=15)
@given(PRINTABLE, PRINTABLE)
def test_stage1_is_a_script_whatever_the_secrets_are(auth_key: str, join_token: str) -> None:
    stage = Stage1("mesh-a-1-abcdef", ("100.64.0.1",), 7677, SecretStr(auth_key), SecretStr(join_token), "a" * 64)
    text = render(stage, assets.stage1_template())
    assert len(text.encode()) <= SIZE_MAX_B
    assert shlex.quote(auth_key) in text
    assert subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False).returncode == 0
