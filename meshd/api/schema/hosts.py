"""Owned machines: `meshctl invite` and `meshctl hosts`."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from meshd.api.schema.base import Document, Name, Part, Request

_Words = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=400, pattern=r"^[ -~]+$")], ...],
                   Field(max_length=32)]  # fmt: skip


class InviteRequest(Request):
    """Invite a machine that exists already to be a node of a pool. Inviting a name again makes a new invitation."""

    pool: Name
    name: Annotated[str, Field(max_length=30, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="what it is called; lower case, digits and dashes"
    )
    usd_per_hour: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 0.0
    expires_s: Annotated[float, Field(ge=60, le=7 * 86400, allow_inf_nan=False)] = 3600.0
    wake_mac: Annotated[str, Field(pattern=r"^(([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2})?$")] = Field(
        "", description="Ethernet address: a magic packet wakes it"
    )
    wake_command: _Words = Field((), description="words of the command that wakes it, run on the head")
    sleep_command: _Words = Field((), description="words of the command that it runs to sleep")


class InviteAnswer(Document):
    """An invitation. `script` holds secrets: it makes the machine that runs it as root a host.

    Attributes:
        tailnet_command: what a machine that is on the tailnet already can run instead of the script.
        logs_in: the script can log a machine in to the tailnet.
    """

    name: str
    pool: str
    slot: str
    expires_at: AwareDatetime
    script: str
    tailnet_command: str
    logs_in: bool = False


class HostRow(Part):
    """An owned machine, or an invitation that nobody has redeemed yet.

    Attributes:
        state: `invited`, `expired`, `free`, `away`, `asleep`, `waking`, `joining`, `node`, `leaving` or `evicting`.
        machine: whose name it has in the cluster now; "" for none.
        problem: what keeps it from where it should be; "" when nothing does.
        own_device: its owner logged its device in to the tailnet.
    """

    name: str
    pool: str
    slot: str
    state: str
    machine: str = ""
    gpu: str = ""
    gpus: int = 0
    cpus: int = 0
    memory_mib: int = 0
    usd_per_hour: float = 0.0
    address: str = ""
    seen_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None
    own_device: bool = False
    wakes: bool = False
    sleeps: bool = False
    problem: str = ""


class HostsView(Document):
    """All owned machines, by pool and slot."""

    at: AwareDatetime
    hosts: list[HostRow] = []
