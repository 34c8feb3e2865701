"""Images: baked on a rented machine, and booted from."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.sandbox.clouds.ledger import Life, RentedMachine
from tests import documents
from tests.e2e.lab import Lab
from tests.e2e.pages import Page, walker
from tests.e2e.recipes import instead

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

SECRET_PATHS = (
    "/etc/munge/munge.key", "/var/lib/tailscale/tailscaled.state", "/etc/meshd-node", "/var/lib/meshd-node",
    "/var/lib/cloud/instance",
)  # fmt: skip


def rented(lab: Lab, cloud: str) -> list[RentedMachine]:
    return lab.cluster.clouds.clouds[cloud].ledger.everything()


async def test_an_image_is_baked_and_machines_boot_from_it(lab: Lab) -> None:
    await lab.have(0)
    await bakes_and_boots(lab, "aws")


@pytest.mark.nightly  # tests/unit/daemon/test_images.py has the same without machines
async def test_the_same_on_google(lab: Lab) -> None:
    """There an image is for all regions, and the console is shown only of machines that run."""
    async with lab.enabled("gce"):
        await bakes_and_boots(lab, "gce")
        await lab.scale(0, "--provider", "gce")
        assert not (await lab.ask("image", "prune", "--all", "--yes"))["failed"]
        assert lab.images() == []


async def bakes_and_boots(lab: Lab, cloud: str) -> None:
    """As the page says."""
    (block,) = documents.share(__file__, "docs/images.md")
    names = []

    async def first(command: str) -> None:
        if command.startswith("meshctl image prune"):
            await makes(lab, cloud, names[0])
        elif command.startswith("meshctl image list"):
            bakes = (await lab.ask("image", "list"))["bakes"]
            names.extend(row["name"] for row in bakes if row["phase"] not in {"done", "failed"})

    async with walker(lab, Page(block.page)) as person:
        words = instead({"--provider aws": f"--provider {cloud}"})
        _, listed, _ = await person.block(block, instead=words, first=first)
        assert names[0] in listed.output
        assert (await lab.ask("image", "list"))["images"], "--dry-run only says what it would do"


async def makes(lab: Lab, cloud: str, name: str) -> None:
    """An image becomes of what was begun, and the next machine boots from it."""

    async def baked() -> Any:
        view = await lab.ask("image", "list")
        bake = next(row for row in view["bakes"] if row["name"] == name)
        assert bake["phase"] != "failed", bake["reason"]
        return view if bake["phase"] == "done" else None

    view = await lab.until(baked, "the image is ready")
    (image,) = [row for row in view["images"] if row["name"] == name]
    assert (image["state"], image["newest"], image["stale"]) == ("available", True, "")
    assert image["slurm"].startswith("24.11") and image["tailscale"]

    async def ended() -> bool:
        return all(one.life is Life.ENDED for one in rented(lab, cloud) if one.token == name)

    await lab.until(ended, "its machine is given back")
    slots = {slot for slot in (await lab.slots()) if slot.endswith("-0")}
    assert not slots, "it never was in Slurm"
    await lab.scale(1, "--provider", cloud)
    (machine,) = [one for one in rented(lab, cloud) if one.life is not Life.ENDED]
    assert machine.image == image["id"]
    (row,) = [row for row in (await lab.ask("image", "list"))["images"] if row["id"] == image["id"]]
    assert row["machines"] == [machine.token]
    layer = lab.cluster.world.hypervisor.image_layer(image["id"])
    assert [path for path in SECRET_PATHS if (layer / path.lstrip("/")).is_file()] == []
    assert not list((layer / "etc/ssh").glob("ssh_host_*key"))
    assert (layer / "etc/machine-id").read_text() == ""
