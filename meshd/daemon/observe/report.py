"""What the daemon reports of its sources: what cannot be read, and what it sees of Slurm and the tailnet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from meshd.api.schema import CheckRow, ProblemView
from meshd.codes import CheckName, ProblemCode
from meshd.daemon.observe.slurm_ping import SlurmPing
from meshd.daemon.providers.report import not_enabled
from meshd.daemon.reporting import Check, Reporter, fail, ok, problem, warn
from meshd.model.machine import Machine
from meshd.model.observed import Fresh, Observation, SlurmView, Snapshot, TailnetView, Unavailable
from meshd.plaintext import counted
from meshd.plan.devices import NO_IPV4_CURE, head_without_ipv4, machines_without_ipv4
from meshd.store.journal import Journal

SLURM_CURE = "check `scontrol ping` and `systemctl status slurmctld`"


def checks(
    snapshot: Callable[[], Snapshot | None],
    machines: Callable[[], Iterable[Machine]],
    slurm_answers: Callable[[], Awaitable[bool | None]] | None = None,
) -> Iterable[Check]:
    """The checks of Slurm and of the tailnet.

    Args:
        snapshot: what every source said last.
        machines: those that are not GONE.
        slurm_answers: pings slurmctld; None from it: that cannot be told.
    """

    async def of_slurm() -> CheckRow:
        found = snapshot()
        return slurm(found.slurm if found is not None else None)

    async def slurm_down() -> CheckRow | None:
        if slurm_answers is None or await slurm_answers() is not False:
            return None
        text = "slurmctld does not answer (scontrol ping)"
        return fail(CheckName.SLURM, ProblemCode.SLURMCTLD_DOWN, text, SLURM_CURE)

    async def of_tailnet() -> CheckRow:
        found = snapshot()
        return tailnet(found.tailnet if found is not None else None, machines())

    yield Check(CheckName.SLURM, of_slurm, reads=True, at_once=slurm_down)
    yield Check(CheckName.TAILNET, of_tailnet, reads=True)


def slurm(seen: Observation[SlurmView] | None) -> CheckRow:
    """Whether Slurm can be read; None: it was not read yet."""
    if not isinstance(seen, Fresh):
        text = f"cannot be read: {seen.reason if seen is not None else 'not read yet'}"
        return fail(CheckName.SLURM, ProblemCode.SLURM_UNREADABLE, text, SLURM_CURE)
    view = seen.value
    return ok(CheckName.SLURM, f"{view.version} answers, {counted(len(view.nodes), 'node')}", at=seen.at)


def tailnet(seen: Observation[TailnetView] | None, machines: Iterable[Machine]) -> CheckRow:
    """Whether the tailnet can be read, gives everybody an IPv4 address, and has direct links; None: not read yet."""
    name = CheckName.TAILNET
    if not isinstance(seen, Fresh):
        text = f"cannot be read: {seen.reason if seen is not None else 'not read yet'}"
        return fail(name, ProblemCode.TAILNET_UNREADABLE, text, "check `systemctl status tailscaled`")
    view = seen.value
    if not view.healthy:
        text = "; ".join(view.problems) or "the head is not online"
        return fail(name, ProblemCode.TAILNET_UNWELL, text, "run `tailscale status`")
    if without := head_without_ipv4(view):
        return fail(name, ProblemCode.NO_IPV4, without, NO_IPV4_CURE)
    if lacking := machines_without_ipv4(view, frozenset(m.name for m in machines)):
        text = f"no IPv4 address, which Slurm's files need: {_some(lacking)}"
        return fail(name, ProblemCode.NO_IPV4, text, NO_IPV4_CURE)
    if relayed := sorted(p.hostname for p in view.peers.values() if p.path.startswith("relay")):
        text = f"reached over a relay, which is slow: {_some(relayed)}"
        cure = "let UDP out at both ends, and 41641 in at one of them; `tailscale netcheck` tells more"
        return warn(name, ProblemCode.TAILNET_RELAYED, text, cure)
    return ok(name, f"the head is {view.self_tailnet_ip}, {counted(len(view.peers), 'peer')}", at=seen.at)


def _some(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'machine')}: {', '.join(names[:5])}"


class SourceReporter(Reporter):
    """Whether meshd can read the clouds, Slurm and the tailnet.

    Args:
        snapshot: what every source said last.
        journal: the machines.
        slurm_ping: asks slurmctld at this moment.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], journal: Journal, slurm_ping: SlurmPing) -> None:
        self._snapshot = snapshot
        self._journal = journal
        self._slurm_ping = slurm_ping

    def problems(self) -> Iterable[ProblemView]:
        """Sources that cannot be read, and machines of clouds that nobody reads."""
        snapshot = self._snapshot()
        yield from unreadable(snapshot)
        yield from self._slurm_ping.problems(snapshot.slurm)
        yield from not_enabled(self._journal.machines(), snapshot)

    def checks(self) -> Iterable[Check]:
        """The checks of Slurm and of the tailnet."""
        return checks(self._snapshot, self._journal.machines, self._slurm_ping)


_TAILNET_CURE = "check `tailscale status` on the head; meshd ends no machine while it cannot read the tailnet"
_SLURM_CURE = "check `scontrol ping` and `systemctl status slurmctld`; no node leaves while meshd cannot read Slurm"
_CURES = {
    ProblemCode.PROVIDER_UNREADABLE: "check the credential and the cloud's status page; `meshctl doctor` tells more",
    ProblemCode.OFFERS_UNREADABLE: "meshd rents nothing from it until it can read its offers",
}
_CURES_BY_KIND = {
    "rate_limited": "nothing: meshd asks again by itself, more slowly; other programs may use the same account",
    "transient": "nothing: meshd asks again by itself; the cloud's status page may tell more",
    "uncertain": "nothing: meshd asks again by itself; the cloud's status page may tell more",
    "quota_exceeded": "ask the provider for a higher quota",
    "auth_failed": "correct the credential (docs/providers.md), then `systemctl restart meshd`",
    "invalid_request": "correct the provider's table in meshd.toml, then `systemctl restart meshd`",
}
"""What to do about a cloud that cannot be read, by the kind of its refusal."""


def unreadable(snapshot: Snapshot) -> Iterable[ProblemView]:
    """One for each source that cannot be read; a provider that is off says so itself."""
    if isinstance(seen := snapshot.tailnet, Unavailable):
        text = f"tailnet cannot be read: {seen.reason}"
        yield problem(ProblemCode.TAILNET_UNREADABLE, "error", text, _TAILNET_CURE, since=seen.since)
    if isinstance(slurm := snapshot.slurm, Unavailable):
        text = f"slurm cannot be read: {slurm.reason}"
        yield problem(ProblemCode.SLURM_UNREADABLE, "error", text, _SLURM_CURE, since=slurm.since)
    for code, kind, table in (
        (ProblemCode.PROVIDER_UNREADABLE, "provider", snapshot.instances),
        (ProblemCode.OFFERS_UNREADABLE, "offers", snapshot.offers),
    ):
        for name, listing in table.items():
            if isinstance(listing, Unavailable) and not listing.reason.startswith(f"{name} is off: "):
                text = f"{name}: {kind} cannot be read: {listing.reason}"
                yield problem(code, "error", text, _CURES_BY_KIND.get(listing.kind, _CURES[code]), since=listing.since)
    if isinstance(snapshot.tailnet, Fresh) and not snapshot.tailnet.value.healthy:
        words = "; ".join(snapshot.tailnet.value.problems) or "the head is not online"
        text = f"the head's tailnet is not well: {words}"
        yield problem(ProblemCode.TAILNET_UNWELL, "error", text, "run `tailscale status` on the head")
