"""What the recipes need: nodes with the packages that they name and the head's homes, and a user on the head."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.sandbox.clouds.host import BootDefaults
from tests.e2e.lab import USER, Lab
from tests.e2e.recipes import Person

SHARE = '[share.home]\npath = "/home"\n'
SLURM_CONF = "/etc/slurm/slurm.conf"
NODES = 2


@asynccontextmanager
async def workplace(lab: Lab, scenario: str, image: str = "trixie-torch", user: str = USER) -> AsyncIterator[Person]:
    """Have two nodes meanwhile, with the head's homes; the person who works there."""
    await lab.begin(scenario)
    async with lab.also(SHARE):
        served = await lab.meshctl("init", "--share", "--yes")
        assert served.returncode == 0, served.stderr.decode()
        lab.boot(BootDefaults(image=image))
        await lab.scale(NODES)
        yield Person(lab, user)
        await lab.reset()


@asynccontextmanager
async def without_accounting_again(lab: Lab) -> AsyncIterator[None]:
    """Somebody may set up accounting meanwhile: afterwards there is none."""
    before = (await lab.head.run("cat", SLURM_CONF)).stdout
    try:
        yield
    finally:
        await lab.head.run("sh", "-ec", f"cat >{SLURM_CONF}", stdin=before)
        await lab.head.run("systemctl", "restart", "slurmctld")
        await lab.head.run("systemctl", "disable", "--quiet", "--now", "slurmdbd", "mariadb")


@asynccontextmanager
async def accounting(lab: Lab) -> AsyncIterator[None]:
    """Have records of jobs meanwhile, so that `sacct` answers."""
    async with without_accounting_again(lab):
        done = await lab.meshctl("init", "--accounting", "--yes")
        assert done.returncode == 0, done.stderr.decode()
        yield
