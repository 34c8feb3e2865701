"""Images are made by the daemon's parts on EC2's stand-in: whole, killed between any two steps, and with its faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.sandbox.clouds.ledger import Life
from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import Refused
from meshd.contract.faults import FaultKind, When
from meshd.daemon.images.wiring import ImageParts
from meshd.errors import ProviderError
from meshd.model.image import BakePhase
from meshd.model.machine import Phase
from meshd.model.observed import Fresh
from meshd.provider_api import ImageBaker, ImageState
from meshd.store.bakes import Bakes
from tests.contract.rigs import SandboxRig, build
from tests.image_room import image_parts
from tests.unit.daemon.small import Small

READY = "meshd: image ready slurm=24.11.5 tailscale=1.96.0\r\n"
ROOT = Actor(uid=0, gid=0, pid=1, user="root", may_write=True)


class Room(Small):
    """The core on EC2's stand-in, whose clock it shares."""

    def __init__(self, directory: Path, rig: SandboxRig) -> None:
        super().__init__(directory, clock=None)
        self.rig = rig
        self.providers["aws"] = self.aws = rig.make("lab", spot=False)
        self.again()

    def again(self) -> None:
        """As after a kill -9: what is in memory is lost."""
        self.parts: ImageParts = image_parts(
            self.machine_store, self.providers, self.desired, lambda: self.seen, Bakes(self.journal)
        )

    @property
    def bakes(self) -> Bakes:
        return Bakes(self.journal)

    async def settle(self) -> None:
        """Let every step in flight come to its end: its calls go over the wire."""
        for _ in range(10_000):
            if not self.executor.in_flight:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("a step never ends")

    async def look(self) -> None:
        """What the clouds say, then a tick and a pass."""
        now = self.clock.now()
        seen = Fresh(tuple(await self.aws.list()), now)
        offers = Fresh(tuple(await self.aws.offers()), now)
        self.seen = replace(self.seen, instances={"aws": seen}, offers={"aws": offers})

    async def step(self, seconds: float = 20.0) -> None:
        self.clock.t_s += seconds
        self.rig.advance(seconds)
        await self.rig.settle()
        await self.look()
        self.reconciler.tick()
        await self.settle()
        await self.parts.controller.reconcile()
        await self.rig.settle()


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with AsyncExitStack() as stack:
        rig = await build("aws", stack)
        one = Room(tmp_path, rig)
        await one.look()
        yield one


async def ordered(room: Room) -> str:
    answer = await room.parts.service.bake(s.BakeRequest(provider="aws"), ROOT)
    return answer.name


async def installed(room: Room, name: str, text: str = READY) -> None:
    """The machine boots, installs and powers off."""
    for _ in range(6):
        await room.step()
    room.rig.write_console(name, text)
    await room.rig.power_off(name)


async def until_over(room: Room, name: str, *, killed: bool = False) -> BakePhase:
    for _ in range(60):
        await room.step()
        if killed:
            room.again()
        bake = room.bakes.find(name)
        assert bake is not None
        machine = room.machine_store.journal.machine(name)
        if not bake.active and machine is not None and machine.phase is Phase.GONE:
            return bake.phase
    raise AssertionError("it is never over")


def alive(room: Room) -> list[str]:
    return [one.token for one in room.rig.ledger.everything() if one.life is not Life.ENDED]


@pytest.mark.parametrize("killed", [False, True])
async def test_an_image_is_made_and_its_machine_given_back(room: Room, killed: bool) -> None:
    name = await ordered(room)
    assert room.get(name).slot == "h100-0" and room.get(name).baking
    await installed(room, name)
    assert await until_over(room, name, killed=killed) is BakePhase.DONE
    assert alive(room) == [] and room.rig.stored_images() == 1
    await room.parts.controller.look()
    view = await room.parts.service.images()
    (row,) = view.images
    assert (row.name, row.slurm, row.tailscale, row.stale, row.newest) == (name, "24.11.5", "1.96.0", "", True)
    offer = room.seen.known_offers[0]
    assert room.parts.controller.image_for(offer) in ("", row.id)
    here = next(one for one in room.seen.known_offers if one.region == row.region)
    assert room.parts.controller.image_for(here) == row.id


@pytest.mark.parametrize("kind", [FaultKind.CUT_AFTER, FaultKind.ERROR_AFTER, FaultKind.HTML_AFTER])
async def test_a_lost_answer_makes_one_image(room: Room, kind: FaultKind) -> None:
    name = await ordered(room)
    await installed(room, name)
    room.rig.inject(kind, "create_image")
    assert await until_over(room, name) is BakePhase.DONE
    assert room.rig.stored_images() == 1 and alive(room) == []


async def test_an_image_that_fails_is_deleted_and_its_machine_given_back(room: Room) -> None:
    name = await ordered(room)
    await installed(room, name)
    room.rig.inject(FaultKind.IMAGE_FAILS, "create_image")
    assert await until_over(room, name) is BakePhase.FAILED
    await room.step()
    assert room.rig.stored_images() == 0 and alive(room) == []
    assert [one.code for one in room.parts.controller.problems()] == ["image_failed"]


async def test_a_machine_that_is_off_and_says_nothing_is_no_master(room: Room) -> None:
    name = await ordered(room)
    await installed(room, name, "somebody switched it off\r\n")
    for _ in range(5):
        await room.step()
    assert room.rig.stored_images() == 0
    await room.step(3600)
    assert await until_over(room, name) is BakePhase.FAILED
    assert room.rig.stored_images() == 0 and alive(room) == []


async def test_a_machine_that_gives_up_is_ended_with_its_words(room: Room) -> None:
    name = await ordered(room)
    for _ in range(6):
        await room.step()
    room.rig.write_console(name, "meshd: image failed: no packages after 15 min of tries\r\n")
    assert await until_over(room, name) is BakePhase.FAILED
    bake = room.bakes.find(name)
    assert bake and bake.reason == "no packages after 15 min of tries" and alive(room) == []


async def test_a_refused_machine_fails_the_bake(room: Room) -> None:
    name = await ordered(room)
    room.rig.inject(FaultKind.QUOTA, "launch", when=When.ALWAYS)
    assert await until_over(room, name) is BakePhase.FAILED
    assert alive(room) == []


async def test_images_that_cannot_be_listed_are_not_gone(room: Room) -> None:
    name = await ordered(room)
    await installed(room, name)
    await until_over(room, name)
    room.rig.inject(FaultKind.ERROR_BEFORE, "images", when=When.ALWAYS)
    await room.step()
    view = await room.parts.service.images()
    assert [row.name for row in view.images] == [name] and view.unread


async def test_one_image_of_a_place_at_a_time(room: Room) -> None:
    await ordered(room)
    with pytest.raises(Refused):
        await ordered(room)


async def test_prune_keeps_the_newest_and_those_in_use(room: Room) -> None:
    names = []
    for _ in range(3):
        names.append(await ordered(room))
        await installed(room, names[-1])
        await until_over(room, names[-1])
    first = next(one for one in room.parts.controller.all() if one.name == names[0])
    machine = replace(room.get(names[0]), name="lab-h100-1-zzzzzz", phase=Phase.READY, image=first.id, instance_id="")
    room.journal.put(machine, "phase", "given", room.clock.now())
    dry = await room.parts.service.prune(s.PruneRequest(dry_run=True), ROOT)
    assert [row.name for row in dry.images] == [names[1]] and room.rig.stored_images() == 3
    await room.parts.service.prune(s.PruneRequest(), ROOT)
    assert {one.name for one in room.parts.controller.all()} == {names[0], names[2]}
    await room.parts.service.prune(s.PruneRequest(newest=True), ROOT)
    assert {one.name for one in room.parts.controller.all()} == {names[0]}, "a machine runs from it"


async def test_leftovers_are_deleted_when_they_are_seen(room: Room) -> None:
    name = await ordered(room)
    await installed(room, name)
    await until_over(room, name)
    (image,) = room.parts.controller.all()
    assert isinstance(room.aws, ImageBaker)
    room.rig.inject(FaultKind.ERROR_BEFORE, "delete_image", skip=1)
    with suppress(ProviderError):
        await room.aws.delete_image(image)
    assert [one.state for one in await room.aws.images()] == [ImageState.LEFTOVER]
    room.again()
    await room.step()
    assert room.rig.stored_images() == 0
