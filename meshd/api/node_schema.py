"""What node agents and the head send each other, as JSON.

Unknown fields are ignored, because an agent may be newer than the head. Known fields are checked strictly, because they
end up in Slurm's files.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StrictBool, field_validator

from meshd.api.node_results import Digest as _Digest
from meshd.api.node_results import Sha256 as _Sha256
from meshd.model.hardware import GpuFact, NodeFacts, NodeShape
from meshd.model.node_settings import SectionState
from meshd.model.path import PathKind
from meshd.plaintext import plain

Verb = Literal[
    "roster",
    "munge_key",
    "auth_key",
    "spare_key",
    "node_token",
    "reauth",
    "greet",
    "start_slurmd",
    "restart_slurmd",
    "reload_slurmd",
    "section",
    "collect_logs",
    "leave",
]

_Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
_Text = Annotated[str, Field(max_length=200, pattern=r"^[ -~]*$")]
Words = AfterValidator(plain)
"""For people: they end up on terminals and in the journal."""
Version = Annotated[str, Field(max_length=40, pattern=r"^[0-9A-Za-z.+~-]*$")]


class FromAgent(BaseModel):
    """The base of what an agent sends."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)


class ShapeIn(FromAgent):
    """`slurmd -C`; all 0 when slurmd is missing."""

    cpus: _Count
    boards: _Count
    sockets_per_board: _Count
    cores_per_socket: _Count
    threads_per_core: _Count
    memory_mib: _Count


class GpuIn(FromAgent):
    """A GPU and its device file, "" when it has none."""

    index: Annotated[int, Field(ge=0, le=1023)]
    name: _Text
    uuid: Annotated[str, Field(max_length=80, pattern=r"^[0-9A-Za-z-]*$")]
    memory_mib: _Count
    device: Annotated[str, Field(pattern=r"^(/dev/nvidia[0-9]{1,4})?$")]


class FactsIn(FromAgent):
    """What the agent found on its machine.

    Attributes:
        gpus: those that work.
        gpu_fault: what nvidia-smi says of the others, or why it fails itself.
        systemd: systemd runs on the machine (`/run/systemd/system`); None from an agent that does not report it.
        tun: `/dev/net/tun` is a character device, and CAP_NET_ADMIN is effective; None as above.
        firewall: CAP_NET_ADMIN is effective, so the agent may make firewall rules; None as above.
        instance_id: of a machine of a gang: its id at its cloud, as the metadata service says; "" for others.
    """

    shape: ShapeIn
    gpus: Annotated[tuple[GpuIn, ...], Field(max_length=64)] = ()
    gpu_fault: Annotated[str, Field(max_length=1000), Words] = ""
    slurmd_version: Version = ""
    tailscale_version: Version = ""
    agent_version: Version = ""
    os: Annotated[str, Field(max_length=200), Words] = ""
    arch: Annotated[str, Field(max_length=40, pattern=r"^[0-9A-Za-z_-]*$")] = ""
    clock_skew_s: Annotated[float, Field(ge=-1e11, le=1e11)]
    ssh_host_key: Annotated[str, Field(max_length=1000, pattern=r"^[!-~]* ?[!-~]*$")] = ""
    machine_id: _Digest = ""
    systemd: StrictBool | None = None
    tun: StrictBool | None = None
    firewall: StrictBool | None = None
    instance_id: Annotated[str, Field(max_length=128, pattern=r"^[0-9A-Za-z./_-]*$")] = ""

    def to_model(self) -> NodeFacts:
        """The facts as the rest of meshd knows them."""
        return NodeFacts(
            shape=NodeShape(**self.shape.model_dump()),
            gpus=tuple(GpuFact(**gpu.model_dump()) for gpu in self.gpus),
            **self.model_dump(exclude={"shape", "gpus"}),
        )


class JoinIn(FromAgent):
    """POST /v1/join.

    Attributes:
        munge_key: fingerprint of the munge key that the machine has; "" when it has none.
    """

    facts: FactsIn
    munge_key: _Digest = ""


class TroubleIn(FromAgent):
    """POST /v1/trouble: what keeps a machine from joining, or from joining again.

    Attributes:
        stage: what it was doing.
        text: the words of the program that failed.
    """

    stage: Literal["packages", "accounts", "slurmd", "gpu", "disk", "clock", "munge", "tailnet", "agent"]
    text: Annotated[str, Field(min_length=1, max_length=400), Words]


class MungeIn(FromAgent):
    """POST /v1/munge."""

    credential: Annotated[str, Field(max_length=8192, pattern=r"^MUNGE:[A-Za-z0-9+/=:]+$")]


class GpuLoadIn(FromAgent):
    """One GPU's load."""

    index: Annotated[int, Field(ge=0, le=1023)]
    utilization_percent: Annotated[int, Field(ge=0, le=100)] = 0
    memory_used_mib: _Count = 0


_Rtt = Annotated[float, Field(ge=0, le=60)]


class PathIn(FromAgent):
    """A tailnet path that was measured `age_s` ago; `relay` is the code of the DERP region."""

    kind: PathKind
    relay: Annotated[str, Field(max_length=40, pattern=r"^[!-~]*$")] = ""
    rtt_s: _Rtt
    age_s: Annotated[float, Field(ge=0, le=1e7)]


class PeerPathsIn(FromAgent):
    """The paths to a sample of the pool's other nodes; `not_direct` names some that are relayed or silent."""

    direct: _Count = 0
    relayed: _Count = 0
    silent: _Count = 0
    rtt_s: _Rtt | None = None
    not_direct: Annotated[
        tuple[Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Za-z._-]*$")], ...], Field(max_length=8)
    ] = ()


class PathsIn(FromAgent):
    """What the agent measured of its tailnet paths; None: nothing yet."""

    head: PathIn | None = None
    peers: PeerPathsIn | None = None


class HeartbeatIn(FromAgent):
    """How the machine is.

    Attributes:
        munge_key: fingerprint of the munge key in place; "" from an agent that does not report it.
        munge_key_staged: fingerprint of the staged key; "" for none.
        jobs: jobs with a running slurmstepd, whatever Slurm says.
        gpu_fault: why nvidia-smi could not be read; "" when it could or there is none.
        paths: its tailnet paths.
    """

    agent_version: Version = ""
    boot_id: Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Za-z-]*$")] = ""
    uptime_s: Annotated[float, Field(ge=0, le=1e10)] = 0.0
    load1: Annotated[float, Field(ge=0, le=1e7)] = 0.0
    slurmd_alive: bool = False
    munged_alive: bool = False
    munge_key: _Digest = ""
    munge_key_staged: _Digest = ""
    jobs: _Count = 0
    gpus: Annotated[tuple[GpuLoadIn, ...], Field(max_length=64)] = ()
    gpu_fault: Annotated[str, Field(max_length=1000), Words] = ""
    paths: PathsIn = PathsIn()


class ResultIn(FromAgent):
    """How a command ended. `detail` says why not; `data` is the verb's own: see `node_results`.

    On arrival, `data` may be any JSON with finite numbers. The queue keeps the fields of the verb's model.
    """

    id: Annotated[str, Field(max_length=64)]
    ok: bool
    detail: Annotated[str, Field(max_length=4000), Words] = ""
    data: dict[str, Any] = {}

    @field_validator("data")
    @classmethod
    def _finite(cls, data: dict[str, Any]) -> dict[str, Any]:
        left: list[Any] = [data]
        while left:
            value = left.pop()
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("a number is not finite")
            left.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        return data


_Code = Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]


class SectionIn(FromAgent):
    """How far the agent is with a section of its node settings.

    Attributes:
        digest: of the value that it holds.
        detail: what it does, or why it failed.
        final: it failed, and trying again cannot help.
    """

    digest: _Digest
    state: SectionState
    detail: Annotated[str, Field(max_length=400), Words] = ""
    final: StrictBool = False


class FaultIn(FromAgent):
    """What a section finds wrong on a machine where it is applied."""

    section: _Code
    code: _Code
    detail: Annotated[str, Field(max_length=400), Words] = ""


class SpotNoticeIn(FromAgent):
    """A notice of the machine's cloud.

    Attributes:
        kind: "preempted", "maintenance" (its host stops) or "rebalance" (it may be preempted soon); a newer agent may
            know others.
        ends_in_s: seconds from now to the machine's end; None where the cloud tells no time.
    """

    kind: _Code
    ends_in_s: Annotated[float, Field(ge=-86400, le=86400)] | None = None


class PollIn(FromAgent):
    """POST /v1/poll.

    Attributes:
        phase: "configuring" (munge is not proved), "ready" (proved, slurmd not asked for), "serving", "left".
        munge_ok: the agent saw both ways of the proof succeed since it started.
        problem: what holds it up, for people; "" when all is well.
        notices: what the agent noticed, oldest first; one may come twice if an answer was lost.
        auth_key_sha256: of the tailnet auth key that it keeps for a login without state; "" when it keeps none.
        spare_key_sha256: of the key for one use that it keeps for the case that its device is deleted; "" for none.
        metadata_open: why users of the machine can reach its cloud's metadata service; "" when they cannot.
        lacks: what a job lacks on this machine that the cluster's settings give it elsewhere, as codes (docs/slurm.md);
            None before the agent has prepared slurmd, and from an agent that does not report it.
        hold_s: the agent wants an answer within this many seconds; None: the head's own.
        sections: its node settings, by section; None from an agent that is older than they are.
        faults: what the sections find wrong.
        spot_notices: those of its cloud that it reads now; None where it reads none, or could not read them yet.
    """

    phase: Annotated[str, Field(max_length=40, pattern=r"^[a-z_]*$")] = ""
    munge_ok: bool = False
    problem: Annotated[str, Field(max_length=1000), Words] = ""
    notices: Annotated[tuple[Annotated[str, Field(max_length=500), Words], ...], Field(max_length=16)] = ()
    roster_version: Annotated[int, Field(ge=-1, le=1_000_000_000)] = 0
    auth_key_sha256: _Sha256 = ""
    spare_key_sha256: _Sha256 = ""
    metadata_open: Annotated[str, Field(max_length=400), Words] = ""
    lacks: Annotated[tuple[_Code, ...], Field(max_length=16)] | None = None
    hold_s: Annotated[float, Field(ge=0, le=600)] | None = None
    sections: Annotated[dict[_Code, SectionIn], Field(max_length=16)] | None = None
    faults: Annotated[tuple[FaultIn, ...], Field(max_length=16)] = ()
    spot_notices: Annotated[tuple[SpotNoticeIn, ...], Field(max_length=8)] | None = None
    heartbeat: HeartbeatIn = HeartbeatIn()
    results: Annotated[tuple[ResultIn, ...], Field(max_length=256)] = ()


class FromHead(BaseModel):
    """The base of what the head sends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_wire(self) -> dict[str, Any]:
        """As `revealed`."""
        return {name: revealed(value) for name, value in self.model_dump().items()}


class Needs(FromHead):
    """What an image without Slurm or munge needs before it can report its facts (GET /v1/needs).

    Attributes:
        packages: names for apt; empty: nothing may be installed, and the agent refuses to join.
    """

    packages: tuple[str, ...] = ()
    slurm_uid: int
    slurm_gid: int
    munge_uid: int
    munge_gid: int


class JoinAnswer(FromHead):
    """What an accepted machine needs.

    Attributes:
        node_token: valid for all calls from now on, also for a rejoin; its first use closes the join token.
        conf_server: "HEAD:6817".
        munge_key_b64: None for a rejoin of a machine that has the key already.
        roster: slot name to tailnet address, for /etc/hosts.
        packages: apt packages to install where missing, besides slurmd and munge.
        slurmd_args: further arguments, e.g. ("-b",) in containers.
        slurmd_wanted: slurmd has been started on this machine: an agent that lost its state starts it again.
        spot_cloud: the cloud whose notices the agent reads, since this is a spot machine of it; "" for none.
        sections: its node settings, by section: `{"digest": ..., "value": ...}`, so that it applies them while munge is
            being proved. Later changes come by the verb `section`.
    """

    node_token: SecretStr
    slot: str
    cluster: str
    conf_server: str
    munge_key_b64: SecretStr | None = None
    slurm_uid: int
    slurm_gid: int
    munge_uid: int
    munge_gid: int
    roster: dict[str, str] = {}
    roster_version: int = 0
    packages: tuple[str, ...] = ()
    poll_hold_s: float = 25.0
    dead_man_s: float = 3600.0
    slurmd_args: tuple[str, ...] = ()
    slurmd_wanted: bool = False
    spot_cloud: str = ""
    sections: dict[str, dict[str, Any]] = {}


def key_b64(key: bytes) -> SecretStr:
    """A munge key as JoinAnswer and the verb munge_key carry it."""
    return SecretStr(base64.b64encode(key).decode())


def revealed(value: Any) -> Any:
    """JSON-ready, with secrets in the clear: only for the body of an answer."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Mapping):
        return {name: revealed(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [revealed(one) for one in value]
    return value
