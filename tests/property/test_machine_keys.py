"""After any history of faults and kills no key for one machine is left that opens anything; none is ended too early."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from meshd.codes import ProblemCode
from meshd.errors import TailnetError
from meshd.model.machine import MOVES, Machine, Phase
from meshd.tailnet import spare_keys as s
from meshd.tailnet.keystore import key_id_of
from meshd.tailnet.machine_keys import (
    LAUNCH,
    SETTLE_S,
    KeyMode,
    MachineKey,
    ask,
    due,
    minted,
    modes_of,
    not_ended,
    over,
    settled,
    why_end,
)
from tests.auth_key_room import TAGS, Room, key_ports
from tests.property.rotation_sim import Crash, SimTailnet, sha
from tests.property.spare_key_agents import Agents
from tests.tiers import bounded
from tests.unit.worlds import FACTS, NOW, machine

TTL_S = 3600.0
ONWARD = (Phase.BOOTING, Phase.JOINING, Phase.CONFIGURING, Phase.TESTING, Phase.READY)
MAY_NEED_IT = frozenset({Phase.REQUESTED, Phase.LAUNCHING, Phase.BOOTING, Phase.JOINING})


# -- the decisions ----------------------------------------------------------------------------------------------------


@given(st.sampled_from([*Phase, None]), st.booleans())
def test_a_key_for_a_launch_lives_exactly_as_long_as_it_may_be_needed(phase: Phase | None, logging_in: bool) -> None:
    key = ask("lab-h100-1-abcde1", LAUNCH, NOW, 60.0)
    assert bool(why_end(key, phase, logging_in=logging_in)) is (phase not in MAY_NEED_IT)


@given(st.sampled_from([*Phase, None]), st.booleans())
def test_a_key_for_a_login_lives_as_long_as_the_login(phase: Phase | None, logging_in: bool) -> None:
    key = ask("lab-h100-1-abcde1", "20260301-120000-ab12-1", NOW, 60.0)
    dead = phase is None or phase in {Phase.GONE, Phase.TERMINATING, Phase.LOST}
    assert bool(why_end(key, phase, logging_in=logging_in)) is (dead or not logging_in)


@given(
    st.from_regex(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?-[a-z0-9]{6}", fullmatch=True).filter(lambda name: len(name) <= 63),
    st.sampled_from([LAUNCH, "20260301-120000-ab12-1"]),
)
def test_descriptions_are_kept_whole_and_tell_machines_apart(name: str, purpose: str) -> None:
    said = ask(name, purpose, NOW, 60.0).description
    assert len(said) <= 50 and said == said.strip() and said.endswith(name[-6:])


@given(st.integers(0, 100), st.floats(0, 1e6))
def test_tries_grow_seldom_and_never_stop(tries: int, later_s: float) -> None:
    key, now = ask("m", LAUNCH, NOW, 60.0), NOW
    for _ in range(tries):
        key = not_ended(key, "no answer", now)
        assert key.retry_at is not None and not due(key, now) and (key.retry_at - now).total_seconds() <= 600
        now = key.retry_at
    assert due(key, now + timedelta(seconds=later_s))


def test_what_may_still_come_is_waited_for() -> None:
    key = ask("m", LAUNCH, NOW, 60.0)
    assert not settled(key, NOW) and settled(key, NOW + timedelta(seconds=SETTLE_S))
    known = minted(key, "k1", NOW + timedelta(seconds=3600))
    assert settled(known, NOW) and not over(known, NOW + timedelta(seconds=3600))
    assert over(known, NOW + timedelta(hours=2))
    again = ask("m", LAUNCH, NOW + timedelta(seconds=9), 60.0, known)
    assert again.lost and again.expires == known.expires, "the first key may live as long as it was told"


@pytest.mark.parametrize(
    ("wanted", "can_mint", "own", "exposed"),
    [
        (None, True, {"runpod"}, ()),
        (None, False, set(), ("runpod",)),
        (KeyMode.PER_MACHINE, True, {"runpod", "closed"}, ()),
        (KeyMode.REUSABLE, True, set(), ()),
        (KeyMode.REUSABLE, False, set(), ()),
    ],
)
def test_the_mode_follows_the_settings_and_else_who_can_read_it(
    wanted: KeyMode | None, can_mint: bool, own: set[str], exposed: tuple[str, ...]
) -> None:
    modes = modes_of(wanted, {"runpod": False, "closed": True}, can_mint=can_mint)
    assert {name for name in ("runpod", "closed", "unknown") if modes.own_key(name)} == own
    assert modes.exposed == exposed
    assert modes.shared_key_wanted is (own != {"runpod", "closed"})
    assert modes_of(None, {}, can_mint=True).shared_key_wanted


# -- what is decided about spares -------------------------------------------------------------------------------------

PLAIN = machine(Phase.READY, own_key=True, tailnet_id="n-1")


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Machine, list[MachineKey]]:
    """A machine that may hold a spare, and any two records of spares."""
    keys = []
    for purpose in draw(st.sets(st.sampled_from(s.PURPOSES))):
        asked_at = NOW + timedelta(days=draw(st.integers(-40, 0)), seconds=draw(st.integers(0, 9)))
        key = ask(PLAIN.name, purpose, asked_at, s.LIFETIME_S, device=draw(st.sampled_from(["n-1", "n-0"])))
        if draw(st.booleans()):
            key = minted(key, f"k-{purpose}", None, sha(purpose))
        keys.append(key)
    spare = draw(st.sampled_from(["", "unknown", *(key.sha256 for key in keys)]))
    return replace(PLAIN, spare_key=spare), keys


@given(scenes(), st.none() | st.integers(-40, 0), st.booleans())
def test_a_machine_is_left_alone_only_with_the_right_spare(
    scene: tuple[Machine, list[MachineKey]], days: int | None, at_hand: bool
) -> None:
    one, keys = scene
    since = None if days is None else NOW + timedelta(days=days)
    wanted, last, has = s.want(one, keys, NOW, since=since, at_hand=at_hand), s.newest(keys), s.held(one, keys)
    if wanted is None:
        assert last is not None and last is has and last.device == one.tailnet_id
        assert last.expires > NOW + s.EXCHANGE_AHEAD and (since is None or last.asked_at >= since)
        return
    assert wanted.purpose in s.PURPOSES and wanted.why
    if wanted.mint:
        assert has is None or wanted.purpose != has.purpose, "what it holds is not ended for another one"
    else:
        assert at_hand and last is not None and wanted.purpose == last.purpose and last is not has


@given(scenes())
def test_a_spare_is_ended_only_when_a_newer_one_is_held(scene: tuple[Machine, list[MachineKey]]) -> None:
    one, keys = scene
    has = s.held(one, keys)
    for key in keys:
        if s.why_end(key, one, keys):
            assert has is not None and key is not has and key.asked_at <= has.asked_at
        for phase in (Phase.TERMINATING, Phase.LOST, Phase.GONE):
            assert s.why_end(key, replace(one, phase=phase), keys)
            assert not s.secret_needed(key, replace(one, phase=phase), keys)
        assert s.why_end(key, None, keys) and s.why_end(key, replace(one, own_key=False), keys)


@given(st.sampled_from([*Phase]), st.booleans(), st.booleans())
def test_who_may_hold_a_spare(phase: Phase, own: bool, left: bool) -> None:
    one = replace(PLAIN, phase=phase, own_key=own, left_slurm=left)
    assert s.may_hold(one) is (own and not left and phase in {Phase.READY, Phase.DRAINING})
    assert not s.may_hold(replace(one, device_gone_since=NOW)), "it cannot be reached"


# -- any history ------------------------------------------------------------------------------------------------------


class Life(Room):
    """One life of the daemon, as far as these keys go."""

    def __init__(self, net: SimTailnet, directory: Path, agents: Agents) -> None:
        super().__init__(directory, key_ports(directory, net, net.clock), agents, net.clock)
        self.net, self.agents = net, agents

    def put(self, one: Machine) -> Machine:
        return self.journal.put(one, "phase", "as the cloud has it", self.net.clock.now())

    def agents_speak(self) -> None:
        """They tell the spare that they hold, from the device that they have."""
        for one in self.journal.machines():
            if one.facts is not None and one.name not in self.agents.lost:
                spare = self.agents.spare.get(one.name, "")
                device = f"n-{one.name}-{self.agents.devices.get(one.name, 0)}"
                held, now = sha(spare) if spare else "", self.net.clock.now()
                self.put(replace(one, spare_key=held, tailnet_id=device, heartbeat_at=now))


def _next(rng: random.Random, one: Machine) -> Phase:
    if one.phase is Phase.REQUESTED:
        return Phase.GONE
    onward = [phase for phase in (*ONWARD, Phase.GONE) if phase in MOVES[one.phase]]
    return onward[0] if onward and rng.random() < 0.7 else rng.choice(sorted(MOVES[one.phase]))


class History:
    """Machines that come and go in every way that the records allow."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.net = SimTailnet(self.rng)
        self.directory = directory
        self.agents = Agents(self.net)
        self.life = Life(self.net, directory, self.agents)
        self.given: dict[str, str] = {}
        """The secret in each machine's user data as it was sent."""

    async def launch(self, one: Machine) -> None:
        """As CloudSteps does it."""
        try:
            kept = await self.life.machine_keys.for_launch(one, TTL_S)
        except TailnetError:
            self.life.put(replace(one, phase=Phase.GONE))
            return
        secret = kept.secret.get_secret_value()
        assert self.given.setdefault(one.name, secret) == secret, "a repeated create call says the same"
        self.net.maybe_crash()
        self.life.put(replace(one, phase=Phase.LAUNCHING, auth_key=kept.sha256, own_key=True))

    async def step(self, index: int) -> None:
        self.net.clock.t_s += self.rng.uniform(0.5, 60.0)
        self.net.control_down = self.net.chance(0.1)
        if self.net.faults and self.rng.random() < 0.5:
            born = machine(Phase.REQUESTED, index=index)
            self.life.put(replace(born, created_at=self.net.clock.now(), phase_since=self.net.clock.now()))
        for one in self.life.journal.machines():
            if one.phase is Phase.REQUESTED and self.rng.random() < 0.7:
                await self.launch(one)
            elif self.rng.random() < (0.05 if one.phase is Phase.READY else 0.3 if self.net.faults else 1.0):
                moved = one.moved(_next(self.rng, one), self.net.clock.now(), "goes on")
                if moved.phase is Phase.JOINING:  # its key is used
                    self._use(moved.name)
                if moved.phase is Phase.CONFIGURING:
                    moved = replace(moved, facts=FACTS)
                self.life.put(moved)
            elif one.phase is Phase.READY and self.rng.random() < 0.1:
                self.agents.device_deleted(one.name)
        self.life.agents_speak()
        await self.life.machine_keys.reconcile()
        await self.life.spares.reconcile()
        self._check_spares()
        for one in self.life.journal.machines():
            young = (self.net.clock.now() - one.created_at).total_seconds() < TTL_S
            if one.phase in {Phase.LAUNCHING, Phase.BOOTING} and young:
                assert self.net.alive(self.given[one.name]), f"{one.name} boots with a dead key"

    def _use(self, name: str) -> None:
        for key in self.net.keys.values():
            if f"tskey-auth-{key.id}-" in self.given[name]:
                self.net.keys[key.id] = replace(key, valid=False)

    def _check_spares(self) -> None:
        """What a living machine holds is good, unless it was used: nothing is taken from it for another one."""
        for one in self.life.journal.machines():
            spare = self.agents.spare.get(one.name, "")
            if s.may_hold(one) and spare not in {"", *self.agents.used}:
                assert self.net.keys[key_id_of(SecretStr(spare))].valid, f"{one.name} holds a dead spare"

    def die(self) -> None:
        self.life.journal.close()
        self.net.crashed = False
        self.life = Life(self.net, self.directory, self.agents)

    async def at_rest(self) -> None:
        """Every machine that is well has one good spare, and there are no others."""
        ready = [one for one in self.life.journal.machines() if s.may_hold(one) and one.name not in self.agents.lost]
        for _ in range(4):
            self.net.clock.t_s += 700.0
            self.life.agents_speak()
            await self.life.machine_keys.reconcile()
            await self.life.spares.reconcile()
        held = {self.agents.spare[one.name] for one in ready}
        assert len(held) == len(ready) and all(self.net.alive(secret) for secret in held)
        living = {key.id for key in self.net.keys.values() if key.valid and key.description.startswith("meshd spare")}
        lost = {key_id_of(SecretStr(self.agents.spare.get(name) or "-")) for name in self.agents.lost}
        assert living - lost == {key_id_of(SecretStr(secret)) for secret in held}


async def test_no_history_leaks_a_key_or_ends_one_that_is_needed(tmp_path: Path) -> None:
    minted_in_all = came_back = 0
    for seed in range(bounded(6, 500)):
        directory = tmp_path / str(seed)
        directory.mkdir()
        history = History(seed, directory)
        for index in range(140):
            history.net.faults = index < 60
            try:
                await history.step(index)
            except Crash:
                history.die()
        await history.at_rest()
        came_back += history.agents.came_back
        for one in history.life.journal.machines():
            history.life.put(replace(one, phase=Phase.GONE))
        for _ in range(4):
            history.net.clock.t_s += 700.0
            await history.life.machine_keys.reconcile()
        living = [key.id for key in history.net.keys.values() if key.valid]
        assert living == [] and history.life.machine_keys.unused == 0, (seed, living)
        assert all(not key.reusable for key in history.net.keys.values())
        assert not list(history.directory.glob("tailscale-auth-key*")), seed
        history.life.journal.close()
        assert b"tskey-auth-" not in (history.directory / "j.db").read_bytes(), "a secret is in the journal"
        minted_in_all += len(history.net.keys)
    assert minted_in_all > 200 and came_back > 20


async def test_a_mint_call_that_has_its_effect_late_leaks_nothing(tmp_path: Path) -> None:
    """Its answer was lost, the machine was given up, and a first search found nothing."""
    history = History(1, tmp_path)
    history.net.faults = False
    one = history.life.put(machine(Phase.REQUESTED))
    history.net.control_down = True
    with pytest.raises(TailnetError):
        await history.life.machine_keys.for_launch(one, TTL_S)
    history.net.control_down = False
    history.life.put(replace(one, phase=Phase.GONE))
    await history.life.machine_keys.reconcile()
    assert history.life.machine_keys.unused == 1, "it may still come"
    await history.net.mint_key(
        tags=TAGS, lifetime_s=3600, description=f"meshd launch {one.name}", reusable=False
    )  # fmt: skip
    other = await history.net.mint_key(tags=TAGS, lifetime_s=3600, description="somebody else's", reusable=False)
    history.net.clock.t_s += SETTLE_S
    await history.life.machine_keys.reconcile()
    assert [key.id for key in history.net.keys.values() if key.valid] == [other.id]
    assert history.life.machine_keys.unused == 0


async def test_a_key_that_cannot_be_ended_is_told_and_tried_until_it_has_ended_by_itself(tmp_path: Path) -> None:
    history = History(1, tmp_path)
    history.net.faults = False
    one = history.life.put(machine(Phase.REQUESTED, created_at=NOW))
    kept = await history.life.machine_keys.for_launch(one, TTL_S)
    history.life.put(replace(one, phase=Phase.GONE))
    history.net.control_down = True
    for _ in range(8):
        history.net.clock.t_s += 60
        await history.life.machine_keys.reconcile()
    (problem,) = history.life.machine_keys.problems()
    assert problem.code == ProblemCode.MACHINE_KEY_NOT_REVOKED
    assert kept.id in problem.text
    assert kept.secret.get_secret_value() not in problem.model_dump_json()
    history.net.clock.t_s += TTL_S + 1000
    await history.life.machine_keys.reconcile()
    assert history.life.machine_keys.unused == 0 and not list(history.life.machine_keys.problems())
