"""What owned machines (hosts) and the head send each other, as JSON, besides what they send as nodes.

A host is a machine that somebody owns and that redeemed an invitation. `meshd-node host` on it polls for the order that
should hold, and goes there from where it is. As in node_schema, unknown fields are ignored and known ones are checked.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from meshd.api.node_schema import FactsIn, FromAgent, FromHead, Version, Words
from meshd.model.host import HostOrder, HostState

_Name = Annotated[str, Field(max_length=63, pattern=r"^([a-z]([-a-z0-9]{0,61}[a-z0-9])?)?$")]


class EnrolIn(FromAgent):
    """POST /v1/hosts/enrol, with the token of the invitation.

    Attributes:
        facts: as in a join. A machine without slurmd reports `shape` from /proc: cpus and memory_mib, and 0 for the
            other fields.
        tailnet: "ours": the invitation logged the machine in; "own": its owner did, and the device stays as it is.
        slurm_version: of the slurmd that the machine had before; "" for none.
        munge_version: of the munged that it had before; "" for none.
        in_use: what of Slurm or munge serves something else here (a running slurmd, slurmctld or munged, a slurm.conf,
            a munge key), for people; "" when nothing does. The head refuses the machine then.
    """

    facts: FactsIn
    tailnet: Literal["own", "ours"]
    slurm_version: Version = ""
    munge_version: Version = ""
    in_use: Annotated[str, Field(max_length=400), Words] = ""


class EnrolAnswer(FromHead):
    """The host is enrolled.

    Attributes:
        host: its name in meshd.
        host_token: for all further calls of the host; its first use closes the invitation for good.
        poll_hold_s: a poll is held this long at most.
    """

    host: str
    host_token: SecretStr
    poll_hold_s: float = 25.0


class HostPollIn(FromAgent):
    """POST /v1/hosts/poll, with the host's token.

    Attributes:
        state: "free": nothing of a node runs; "joining": the node agent is being started; "node": it runs; "leaving":
            what a node has is being taken off.
        machine: whose node agent is there; "" in state free.
        problem: what keeps the host from where it should go, for people; "" when all is well.
        order: the order that it follows; the answer is held until another one should hold. "" is answered at once.
        facts: as in EnrolIn, when the host starts and when they have changed; None: as before.
        hold_s: the host wants an answer within this many seconds; None: the head's own.
    """

    state: HostState
    machine: _Name = ""
    problem: Annotated[str, Field(max_length=1000), Words] = ""
    facts: FactsIn | None = None
    order: Literal["", "free", "node", "evict", "sleep"] = ""
    hold_s: Annotated[float, Field(ge=0, le=600)] | None = None


class JoinFile(FromHead):
    """What /etc/meshd-node/join.json has on a machine: the same fields as stage 1 writes.

    Attributes:
        machine: its name in the cluster while it is a node.
        heads: the head's tailnet addresses, tried in this order.
        port: of the head's node API.
        token: the join token.
        sha256: of the node agent that the head serves: GET /v1/agent with the host's token.
        dead_man_s: the agent's limit until the head sends one. A host never powers itself off.
    """

    machine: str
    heads: tuple[str, ...]
    port: int
    token: SecretStr
    sha256: str
    dead_man_s: float


class HostPollAnswer(FromHead):
    """What should be. The host goes there from where it is, and may be told the same again.

    Attributes:
        order: "free": be no node; "node": be the node of `machine` (another machine's parts are taken off first);
            "sleep": be no node, then run `sleep_command`; "evict": take meshd off, then POST /v1/hosts/evicted.
        machine: for "node"; "" otherwise.
        join: for "node"; None otherwise.
        sleep_command: words of the command for "sleep", run by root without a shell; empty otherwise.
        poll_hold_s: as in EnrolAnswer.
    """

    order: HostOrder
    machine: str = ""
    join: JoinFile | None = None
    sleep_command: tuple[str, ...] = ()
    poll_hold_s: float = 25.0


class EvictedIn(FromAgent):
    """POST /v1/hosts/evicted, with the host's token: meshd is off the machine. Its token opens nothing afterwards.

    Attributes:
        not_restored: what could not be restored, a line each, for people.
    """

    not_restored: Annotated[tuple[Annotated[str, Field(max_length=400), Words], ...], Field(max_length=64)] = ()
