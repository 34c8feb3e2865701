"""`install`: it brings a new machine up itself, and leaves to the service what takes long or fails."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.node.standins import House, program, until


@pytest.fixture
def waiting(house: House) -> House:
    """A machine whose service only waits: all that happens is the work of `install`."""
    service = house.machine.services / "meshd-node"
    service.mkdir()
    program(service, "run", "exec sleep 1000\n")
    house.machine.supervise()
    return house


async def ended(house: House) -> int:
    """The exit code of `install`."""
    assert house.machine.process is not None
    return await asyncio.wait_for(house.machine.process.wait(), 60)


async def test_it_joins_and_starts_slurmd(waiting: House) -> None:
    house = waiting
    await until(lambda: (house.machine.services / "meshd-node/supervise/control").exists())
    ordered = asyncio.create_task(house.handlers.order("start_slurmd"))
    await house.machine.start("install")
    assert await ended(house) == 0, house.machine.text()
    result = await asyncio.wait_for(ordered, 5)
    assert result.ok, result.detail
    await until(lambda: bool(house.machine.slurmd_calls()))
    assert house.handlers.joins == 1
    assert house.handlers.reports[0].munge_ok
    assert len(house.handlers.reports) == 2, "one poll gets the order, one tells its result"
    # The service goes on from here: it neither joins again nor starts a second slurmd.
    await house.machine.start()
    await until(lambda: house.handlers.reports[-1].phase == "serving")
    assert house.handlers.joins == 1
    assert len(house.machine.slurmd_calls()) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("packages", {"names": ["gcc"]}),
        ("setup", {"script": "#!/bin/sh\ntouch $STANDIN_ROOT/ran\n", "timeout_s": 60.0, "pool": "h100"}),
    ],
)
async def test_what_may_take_minutes_is_the_service_s(waiting: House, name: str, value: dict[str, object]) -> None:
    house = waiting
    house.handlers.sections = {
        name: {"digest": "0" * 16, "value": value},
        "job_env": {"digest": "1" * 16, "value": {"env": {}}},
    }
    await until(lambda: (house.machine.services / "meshd-node/supervise/control").exists())
    await house.machine.start("install")
    assert await ended(house) == 0, house.machine.text()
    assert house.handlers.joins == 1
    assert house.handlers.reports == []
    assert not (house.machine.root / "ran").exists()


async def test_a_section_without_work_is_no_hindrance(waiting: House) -> None:
    house = waiting
    house.handlers.sections = {"packages": {"digest": "0" * 16, "value": {"names": []}}}
    await until(lambda: (house.machine.services / "meshd-node/supervise/control").exists())
    ordered = asyncio.create_task(house.handlers.order("start_slurmd"))
    await house.machine.start("install")
    assert await ended(house) == 0, house.machine.text()
    assert (await asyncio.wait_for(ordered, 5)).ok


async def test_after_a_failure_the_service_tries_again(waiting: House) -> None:
    house = waiting
    house.handlers.tickets = {}
    await until(lambda: (house.machine.services / "meshd-node/supervise/control").exists())
    await house.machine.start("install")
    assert await ended(house) == 0
    assert house.handlers.joins == 0
    assert "the service tries again" in house.machine.text()
