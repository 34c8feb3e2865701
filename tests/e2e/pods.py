"""What the scenarios about pods share: two pods of one cloud, without a TUN device and without systemd, and a VM of
another cloud, in one partition."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from deploy.sandbox.clouds.host import BootDefaults
from tests.e2e.lab import Lab

POD_CLOUD, VM_CLOUD = "runpod", "lambda"
PROGRAMS = Path(__file__).resolve().parent / "programs"
HOME = "/home/alice"

COOLDOWN_S = 1.0
"""An offer without room is asked again soon: the machine that leaves room is then replaced by one of its own cloud."""


LOST_S = 30
"""meshd believes that a pod died when its agent has been silent for so long and Slurm does not show the node up. Agents
call every 25 s."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Two pods and a VM, all READY.

    Attributes:
        pods: their slots.
        vm: its slot.
        machines: by slot.
    """

    lab: Lab
    pods: tuple[str, str]
    vm: str
    machines: dict[str, str]

    @property
    def slots(self) -> tuple[str, str, str]:
        """The pods, then the VM."""
        return (*self.pods, self.vm)

    @property
    def all_nodes(self) -> str:
        """All slots, as srun's `-w` takes them."""
        return ",".join(self.slots)

    async def sh(self, slot: str, script: str, *, check: bool = True) -> str:
        """Run a script on a node as its root, outside of Slurm; what it printed."""
        return await self.lab.inside(self.machines[slot], "sh", "-c", script, check=check)

    async def on_all(self, script: str) -> dict[str, str]:
        """The same on all nodes, by slot."""
        said = await asyncio.gather(*(self.sh(slot, script) for slot in self.slots))
        return dict(zip(self.slots, said, strict=True))

    async def program(self, name: str, *words: str, srun: tuple[str, ...] = (), timeout_s: float = 120.0) -> str:
        """Run one of `PROGRAMS` with one `srun` over all nodes, which also brings it there; what it printed.

        Rank 0 is on the first pod.
        """
        await self.put(name)
        where = ("--distribution=arbitrary", "-w", self.all_nodes, f"--bcast=/tmp/{name}")
        return await self.lab.srun(*where, *srun, f"{HOME}/{name}", *words, timeout_s=timeout_s)

    async def put(self, name: str) -> None:
        """Put one of `PROGRAMS` onto the head."""
        await self.lab.head.write(f"{HOME}/{name}", (PROGRAMS / name).read_text("utf-8"), "0755")

    async def pid(self, slot: str, name: str) -> str:
        """The oldest process of a daemon on a node; "" where there is none."""
        found = "-f '/opt/meshd-node/[a-z.-]+ run'" if name == "meshd-node" else f"-x '{name}.*'"
        return await self.sh(slot, f"pgrep -o {found}", check=False)

    async def run_everywhere(self, name: str) -> None:
        """Wait until a program runs on all nodes."""

        async def look() -> bool:
            return all([await self.pid(slot, name) for slot in self.slots])

        await self.lab.until(look, f"{name} runs on all nodes")

    async def output(self, slot: str, job: str) -> str:
        """What a batch job has printed so far, into its file on its first node."""
        return await self.sh(slot, f"cat /tmp/slurm-{job}.out", check=False)

    async def till_printed(self, slot: str, job: str, word: str) -> None:
        """Wait until a batch job has printed a word."""

        async def look() -> bool:
            return word in await self.output(slot, job)

        await self.lab.until(look, f"job {job} prints {word!r}")

    async def finished(self, job: str) -> dict[str, str]:
        """Wait until a job has ended, which must be well and at its first run; what Slurm says of it then."""

        async def look() -> dict[str, str] | None:
            seen = await self.lab.job(job)
            return None if seen["JobState"] in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"} else seen

        seen = await self.lab.until(look, f"job {job} ends")
        if (seen["JobState"], seen["Restarts"]) != ("COMPLETED", "0"):
            raise AssertionError(f"{seen}\n{await self.output(seen['BatchHost'], job)}")
        return seen

    async def end(self, slot: str, job: str) -> None:
        """End a job of `WAIT_FOR_WORD`, and wait until it has ended well, at its first run."""
        await self.sh(slot, f"touch /tmp/end-{job}")
        await self.finished(job)

    async def idle(self) -> None:
        """Wait until all nodes are idle."""

        async def look() -> bool:
            slots = await self.lab.slots()
            return all(slots[slot].states == {"IDLE"} for slot in self.slots)

        await self.lab.until(look, "all nodes are idle")


async def rented(lab: Lab) -> Fleet:
    """The fleet of the machines that are there."""
    rows = await lab.by_slot()
    pods = sorted(slot for slot, row in rows.items() if row["provider"] == POD_CLOUD)
    (vm,) = (slot for slot, row in rows.items() if row["provider"] == VM_CLOUD)
    return Fleet(lab, (pods[0], pods[1]), vm, {slot: row["machine"] for slot, row in rows.items()})


async def brought_up(lab: Lab, scenario: str, image: str = "trixie") -> Fleet:
    """Rent the fleet, from nothing, where both clouds are enabled."""
    await lab.begin(scenario)
    await lab.timing(no_capacity_cooldown_s=COOLDOWN_S, heartbeat_lost_s=LOST_S)
    lab.boot(BootDefaults(image=image))
    lab.room(**{POD_CLOUD: 2, VM_CLOUD: 1})
    await lab.scale(3, "--spread")
    return await rented(lab)
