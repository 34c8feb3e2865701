"""`meshctl invite` on the head: slots, scripts, auth keys; and what people may not do."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import ApiFault
from meshd.bootstrap.tokens import hash_token
from meshd.codes import RefusalCode
from meshd.daemon.hosts.wiring import open_invitations
from meshd.model.desired import Desired, Pool
from meshd.model.host import HostState
from meshd.model.machine import Phase
from meshd.store.hosts import Hosts
from tests.auth_key_room import Room as KeyRoom
from tests.auth_key_room import key_ports
from tests.head_room import ROOT
from tests.host_room import SUFFIX, host_parts
from tests.live import live_settings
from tests.property.rotation_sim import SimTailnet
from tests.unit.worlds import NOW, host, machine

MEMBER = Actor(uid=1000, gid=1000, pid=1, user="alice", may_write=True)
POOL = Pool("h100", "h100", 1, 3, ("static", "aws"))
RENTED = Pool("a100", "a100", 1, 3, ("aws",))


class Room:
    """A head that can mint auth keys."""

    def __init__(
        self, directory: Path, *, can_mint: bool = True, head_ip: str = "100.64.0.1", static: bool = True
    ) -> None:
        self.api = SimTailnet(random.Random(1), faults=False)
        ports = key_ports(directory, self.api, self.api.clock, can_mint=can_mint)
        self.keys = KeyRoom(directory, ports, self.api, self.api.clock, invited=self._open)
        self.store = self.keys.machine_store
        self.hosts = Hosts(self.keys.journal)
        desired = Desired("lab", {"h100": POOL, "a100": RENTED}, {})
        self.parts = host_parts(
            self.store, self.hosts, machine_keys=self.keys.machine_keys, desired=lambda: desired,
            head_ip=lambda: head_ip, live=live_settings(providers={"static": {}} if static else {}),
        )  # fmt: skip

    def _open(self) -> frozenset[str]:
        return open_invitations(self.hosts, self.store)

    async def invite(self, name: str = "tower", actor: Actor = ROOT, **changes: Any) -> s.InviteAnswer:
        request = s.InviteRequest.model_validate({"pool": "h100", "name": name, **changes})
        return await self.parts.invitations.invite(request, actor)

    def alive(self) -> list[str]:
        """The keys that open something, by their ids."""
        return [key.id for key in self.api.keys.values() if key.valid]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.keys.journal.close()


def enrolment(script: str) -> dict[str, Any]:
    found = re.search(r'\{"host":.*?\}', script)
    assert found
    return dict(json.loads(found[0]))


async def test_a_script_has_a_key_for_one_use_and_a_token_of_its_own(room: Room) -> None:
    answer = await room.invite(expires_s=600)
    (key,) = room.api.keys.values()
    assert (key.reusable, key.tags, answer.logs_in) == (False, ("tag:gpu",), True)
    assert key.description.startswith("meshd invitation tower-")
    assert (answer.slot, (answer.expires_at - NOW).total_seconds()) == ("h100-1", 600)
    one = enrolment(answer.script)
    assert (one["host"], one["heads"], one["slurm_version"]) == ("tower", ["100.64.0.1"], "24.11.5")
    assert room.parts.service.invited(hash_token(one["token"])) == "tower"
    assert one["token"] in answer.tailnet_command
    assert await room.parts.service.script("tower") == answer.script, "the machine may fetch it again"


async def test_the_script_is_one_that_a_shell_takes(room: Room, tmp_path: Path) -> None:
    script = tmp_path / "tower.sh"
    script.write_text((await room.invite()).script)
    assert "OLDEST=23.02 NEWEST=24.11\n" in script.read_text(), "the releases of slurmd that the head serves"
    assert SUFFIX in script.read_text(), "the tailnet that the machine may be on"
    assert not re.search(r"@[A-Z_]+@", script.read_text()), "every value is filled in"
    for shell in ("sh", "dash", "bash"):
        if shutil.which(shell):
            subprocess.run([shell, "-n", script], check=True)


async def test_the_key_ends_with_its_invitation(room: Room) -> None:
    await room.invite()
    await room.keys.machine_keys.reconcile()
    assert room.alive() == ["k1"]
    await room.invite()
    await room.keys.machine_keys.reconcile()
    assert room.alive() == ["k2"], "the last invitation with this name is void"
    room.hosts.change("tower", "redeemed", NOW, enrolled_at=NOW)
    await room.keys.machine_keys.reconcile()
    assert room.alive() == []
    assert (await room.parts.service.script("tower")).count("tskey") == 0
    await room.invite("attic", expires_s=600)
    room.api.clock.t_s += 601
    await room.keys.machine_keys.reconcile()
    assert room.alive() == []


async def test_without_a_credential_the_machine_must_be_on_the_tailnet(tmp_path: Path) -> None:
    room = Room(tmp_path, can_mint=False)
    answer = await room.invite()
    assert (answer.logs_in, "tskey" in answer.script) == (False, False)
    room.keys.journal.close()


async def test_no_token_is_given_twice(room: Room) -> None:
    first = enrolment((await room.invite()).script)["token"]
    room.parts.invitations.evict("tower", ROOT, force=False, dry_run=False)
    assert room.hosts.find("tower") is None
    room.api.clock.t_s += 2
    second = enrolment((await room.invite()).script)["token"]
    assert first != second
    assert room.parts.service.invited(hash_token(first)) is None


async def test_each_host_has_a_slot_of_its_own(room: Room) -> None:
    held = machine(Phase.READY, index=1)
    room.keys.journal.put(held, "phase", "given", NOW)
    slots = [(await room.invite(name)).slot for name in ("a", "b", "c", "b")]
    assert slots == ["h100-2", "h100-3", "h100-1", "h100-3"], "free ones first; the same name, the same slot"
    with pytest.raises(ApiFault) as refused:
        await room.invite("d")
    assert refused.value.code is RefusalCode.NO_ROOM
    room.api.clock.t_s += 3601
    assert (await room.invite("d")).slot == "h100-2", "an invitation that expired holds no slot"


@pytest.mark.parametrize(
    ("changes", "actor", "code"),
    [
        ({"pool": "none"}, ROOT, RefusalCode.NO_SUCH_POOL),
        ({"pool": "a100"}, ROOT, RefusalCode.HOSTS_OFF),
        ({"name": "pc-9"}, ROOT, RefusalCode.HOST_EXISTS),
        ({"name": "h100-3"}, ROOT, RefusalCode.HOST_EXISTS),
        ({"name": "h100"}, ROOT, RefusalCode.HOST_EXISTS),
        ({"name": "lab-h100-3-abcdef"}, ROOT, RefusalCode.HOST_EXISTS),
        ({}, MEMBER, None),
    ],
)
async def test_who_cannot_be_invited(
    room: Room, changes: dict[str, Any], actor: Actor, code: RefusalCode | None
) -> None:
    room.hosts.put(host(2, name="pc-9"), "enrolled", NOW)
    with pytest.raises(ApiFault) as refused:
        await room.invite(**{"name": "tower", "actor": actor, **changes})
    assert refused.value.code is code
    assert room.hosts.find("tower") is None and not room.api.keys


async def test_where_owned_machines_are_off(tmp_path: Path) -> None:
    room = Room(tmp_path, static=False)
    with pytest.raises(ApiFault) as refused:
        await room.invite()
    assert refused.value.code is RefusalCode.HOSTS_OFF
    room.keys.journal.close()


async def test_a_head_that_is_not_on_the_tailnet_invites_nobody(tmp_path: Path) -> None:
    room = Room(tmp_path, head_ip="")
    with pytest.raises(ApiFault, match="tailnet address"):
        await room.invite()
    assert room.hosts.all() == ()
    room.keys.journal.close()


async def test_hosts_as_people_see_them(room: Room) -> None:
    await room.invite("attic")
    for one in (
        host(2), host(3, name="away", there=False), host(4, sleeps=True, there=False), host(5, machine="m", runs="m",
        state=HostState.NODE), host(6, evict=True), host(7, sleeps=True, there=False, machine="m", woken_at=NOW),
    ):  # fmt: skip
        room.hosts.put(one, "given", NOW)
    view = await room.parts.invitations.hosts()
    states = [(row.name, row.state) for row in view.hosts]
    assert states == [
        ("attic", "invited"), ("pc-2", "free"), ("away", "away"), ("pc-4", "asleep"), ("pc-5", "node"),
        ("pc-6", "evicting"), ("pc-7", "waking"),
    ]  # fmt: skip
    assert (view.hosts[1].gpu, view.hosts[1].gpus, view.hosts[1].own_device) == ("h100-sxm", 1, True)
