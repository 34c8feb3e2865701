"""Images are made by the daemon's parts on stand-ins: whole, killed at any point, and with the clouds' faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from deploy.sandbox.clouds.ledger import Life
from meshd.api import schema as s
from meshd.api.auth import Actor
from meshd.api.faults import Refused
from meshd.contract.faults import FaultKind, When
from meshd.daemon.images.wiring import ImageParts
from meshd.daemon.providers.guarded import Guard, Operation, guarded
from meshd.errors import ProviderError, StoreError
from meshd.model.desired import Target
from meshd.model.image import BakePhase
from meshd.model.machine import FailureCause, Phase
from meshd.model.observed import Fresh
from meshd.provider_api import ImageBaker, ImageState
from meshd.store.bakes import Bakes
from tests.contract.rigs import SandboxRig, build
from tests.image_room import image_parts
from tests.unit.daemon.small import Small

READY = "meshd: image ready slurm=24.11.5 tailscale=1.96.0\r\n"
ROOT = Actor(uid=0, gid=0, pid=1, user="root", may_write=True)


class Room(Small):
    """The core on a stand-in of a cloud that makes images, whose clock it shares.

    Args:
        directory: the journal's.
        rig: the cloud.
        clock: of the room before, of which this one is the next life.
        guards: stand around the calls to the cloud.
    """

    def __init__(self, directory: Path, rig: SandboxRig, clock: Any = None, guards: Sequence[Guard] = ()) -> None:
        super().__init__(directory, clock=clock)
        self.rig = rig
        self.baker: Any = guarded(rig.make("lab", spot=False), guards)
        self.providers.clear()
        self.providers[rig.name] = self.baker
        self.pool = replace(self.pool, providers=(rig.name,))
        self.again()

    def again(self) -> None:
        """As after a kill -9: what is in memory of images is lost."""
        self.parts: ImageParts = image_parts(
            self.machine_store, self.providers, self.desired, lambda: self.seen, Bakes(self.journal)
        )
        self.cloud_steps._cooldowns._images = self.parts.controller
        self.cloud_steps._create_calls._images = self.parts.controller

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
        """What the cloud says."""
        now = self.clock.now()
        seen = Fresh(tuple(await self.baker.list()), now)
        offers = Fresh(tuple(await self.baker.offers()), now)
        self.seen = replace(self.seen, instances={self.rig.name: seen}, offers={self.rig.name: offers})

    async def step(self, seconds: float = 20.0) -> None:
        """Time goes on, then a look, a tick and a pass."""
        self.clock.t_s += seconds
        self.rig.advance(seconds)
        await self.rig.settle()
        await self.look()
        self.reconciler.tick()
        await self.settle()
        await self.parts.controller.reconcile()
        await self.rig.settle()


@pytest.fixture(params=["aws", "gce"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[SandboxRig]:
    async with AsyncExitStack() as stack:
        yield await build(request.param, stack)


@pytest.fixture
async def room(tmp_path: Path, rig: SandboxRig) -> AsyncIterator[Room]:
    one = Room(tmp_path, rig)
    await one.look()
    yield one


async def ordered(room: Room) -> str:
    answer = await room.parts.service.bake(s.BakeRequest(provider=room.rig.name), ROOT)
    return answer.name


async def installed(room: Room, name: str, text: str = READY) -> None:
    """The machine boots, installs, and powers off when its words may have been read."""
    for _ in range(6):
        await room.step()
    room.rig.write_console(name, text)
    if room.rig.name == "gce":  # it shows no console of a machine that is off
        await room.step()
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
    here = next(one for one in room.seen.known_offers if row.region in ("", one.region))
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


async def test_a_machine_whose_image_is_gone_boots_from_another_one(room: Room) -> None:
    """Somebody deleted it at the cloud; no listing since then has told the daemon."""
    name = await ordered(room)
    await installed(room, name)
    await until_over(room, name)
    (image,) = room.parts.controller.all()
    await room.baker.delete_image(image)
    room.pool = replace(room.pool, gpus_per_node=8)
    room.journal.set_target(Target("h100", 8), "wanted", room.clock.now())
    tried = []
    for _ in range(4):
        room.clock.t_s += 5
        room.rig.advance(5)
        await room.rig.settle()
        await room.look()
        room.reconciler.tick()
        await room.settle()
        tried += [one.image for one in room.journal.machines() if one.phase is Phase.REQUESTED]
    (machine,) = [one for one in room.journal.machines() if not one.baking]
    assert machine.phase is Phase.BOOTING and machine.image == room.rig.image_of(machine.name) == ""
    assert image.id in tried, "the first call named it"
    assert not room.journal.cooldowns(room.clock.now()), "its place is not left alone"
    (row,) = (await room.parts.service.images()).images
    assert row.reason
    await room.parts.controller.look()
    assert room.parts.controller.all() == ()


async def test_an_image_that_no_machine_boots_from_is_tried_again_later(room: Room) -> None:
    name = await ordered(room)
    await installed(room, name)
    await until_over(room, name)
    (image,) = room.parts.controller.all()
    here = next(one for one in room.seen.known_offers if image.region in ("", one.region))
    room.parts.controller.refused(image.provider, image.id, "InvalidAMIID.Unavailable")
    assert room.parts.controller.image_for(here) == ""
    room.clock.t_s += 3601
    assert room.parts.controller.image_for(here) == image.id


async def test_an_image_from_which_a_machine_could_not_start_is_left_alone_and_not_its_place(room: Room) -> None:
    """EC2 takes such an order, and ends the machine, e.g. when somebody deleted the image's snapshot."""
    name = await ordered(room)
    await installed(room, name)
    await until_over(room, name)
    (image,) = room.parts.controller.all()
    here = next(one for one in room.seen.known_offers if image.region in ("", one.region))
    machine = replace(room.get(name), offer=here, image=image.id, baking=False)
    words = "Client.InvalidSnapshot.NotFound: The snapshot was not found"
    room.cloud_steps._cooldowns.failed(machine, FailureCause.IMAGE, words)
    assert not room.journal.cooldowns(room.clock.now()) and room.parts.controller.image_for(here) == ""
    room.cloud_steps._cooldowns.failed(replace(machine, image=""), FailureCause.IMAGE, words)
    assert room.journal.cooldowns(room.clock.now()), "then it is the cloud's own"


async def test_an_image_that_the_credential_may_not_use_is_left_alone_and_not_its_cloud(room: Room) -> None:
    if room.rig.name != "gce":
        pytest.skip("EC2 asks for no permission of its own")
    name = await ordered(room)
    await installed(room, name)
    await until_over(room, name)
    room.rig.inject(FaultKind.DENIED, "compute.images.useReadOnly")
    room.pool = replace(room.pool, gpus_per_node=8)
    room.journal.set_target(Target("h100", 8), "wanted", room.clock.now())
    for _ in range(4):
        await room.step(5)
    (machine,) = [one for one in room.journal.machines() if not one.baking]
    assert machine.phase is Phase.BOOTING and machine.image == ""
    assert not room.journal.cooldowns(room.clock.now()), "its cloud is not left alone"
    (problem,) = room.parts.controller.problems()
    assert problem.code == "image_refused" and "lacks compute.images.useReadOnly" in problem.text and problem.cure


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


@pytest.mark.parametrize("rig", ["aws"], indirect=True)
async def test_leftovers_are_deleted_when_they_are_seen(room: Room) -> None:
    name = await ordered(room)
    await installed(room, name)
    await until_over(room, name)
    (image,) = room.parts.controller.all()
    assert isinstance(room.baker, ImageBaker)
    room.rig.inject(FaultKind.ERROR_BEFORE, "delete_image", skip=1)
    with suppress(ProviderError):
        await room.baker.delete_image(image)
    assert [one.state for one in await room.baker.images()] == [ImageState.LEFTOVER]
    room.again()
    await room.step()
    assert room.rig.stored_images() == 0


T = TypeVar("T")
CHANGES = frozenset({"launch", "create_image", "terminate"})


class Killed(asyncio.CancelledError):
    """The daemon is no more: what is on the way ends where it is."""


class Death:
    """Kills the daemon at its `at`-th point: after a write to the journal, or after a call whose answer is lost."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._journal: Any = None
        self.came = False

    def watch(self, room: Room) -> None:
        self._journal = room.journal
        room.journal.on_event(self._point)

    async def call(self, operation: Operation, ask: Callable[[], Awaitable[T]]) -> T:
        """See Guard."""
        answer = await ask()
        if operation in CHANGES:
            self._point()
        return answer

    def _point(self) -> None:
        if self.came:
            raise Killed
        self._left -= 1
        if self._left == 0:
            self.came = True
            self._journal.close()
            raise Killed


async def whole_life(directory: Path, rig: SandboxRig, death: Death, *, again: bool = False) -> Room:
    """A bake from its order to its end, with one death on the way; the room that saw the end.

    Args:
        directory: the journal's.
        rig: the cloud.
        death: when.
        again: what is in memory of images is lost after each step.
    """
    room = Room(directory, rig, guards=(death,))
    await room.look()
    name = await ordered(room)
    death.watch(room)
    said, buried = 0, False
    for _ in range(120):
        with suppress(Killed, StoreError):
            await room.step(5.0 if 0 < said < 4 else 20.0)
        if death.came and not buried:
            buried, room = True, Room(directory, rig, room.clock)
            continue
        if again:
            room.again()
        up = [one for one in rig.ledger.everything() if one.token == name and one.address and not one.powered_off]
        if up and up[0].life is Life.RUNNING:
            rig.write_console(name, READY)
            said += 1
        if said == 4:
            await rig.power_off(name)
        bake, machine = room.bakes.find(name), room.journal.machine(name)
        if bake is not None and not bake.active and machine is not None and machine.phase is Phase.GONE:
            return room
    raise AssertionError(f"it is never over: {room.bakes.find(name)}, {room.journal.machine(name)}")


async def ends_with_one_image(room: Room, what: object) -> None:
    """One image is there, made of one machine, which is gone. Deletes the image."""
    (bake,) = room.bakes.all()
    assert bake.phase is BakePhase.DONE, (what, bake.reason)
    assert alive(room) == [] and room.rig.stored_images() == 1, what
    assert [one.token for one in room.rig.ledger.everything()].count(bake.name) == 1, what
    room.rig.clear()
    for image in await room.baker.images():
        await room.baker.delete_image(image)
    room.journal.close()


async def test_killed_at_each_point_it_makes_one_image(tmp_path: Path, rig: SandboxRig) -> None:
    points = 0
    while True:
        death, folder = Death(points + 1), tmp_path / str(points)
        folder.mkdir()
        await ends_with_one_image(await whole_life(folder, rig, death), points)
        if not death.came:
            break
        points += 1
    assert points > 10


async def test_each_single_fault_leaves_one_image(tmp_path: Path, rig: SandboxRig) -> None:
    for operation in ("launch", "get", "console", "create_image", "images", "terminate"):
        for kind in (FaultKind.ERROR_BEFORE, FaultKind.CUT_AFTER, FaultKind.HTML_AFTER):
            folder = tmp_path / f"{operation}-{kind}"
            folder.mkdir()
            rig.inject(kind, operation)
            room = await whole_life(folder, rig, Death(0), again=True)
            assert not rig.faults.pending(), folder.name
            await ends_with_one_image(room, folder.name)
