"""Sources that cannot be read, and a tailnet that cannot be believed. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from meshd.api.schema import ProblemView
from meshd.codes import ProblemCode
from meshd.daemon.reporting import problem
from meshd.model.observed import Fresh, Snapshot, Unavailable

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
    "auth_failed": "mend the credential (docs/providers.md), then `systemctl restart meshd`",
    "invalid_request": "mend the provider's table in meshd.toml, then `systemctl restart meshd`",
}
"""What to do about a cloud that cannot be read, by the kind of its refusal."""


def sources(snapshot: Snapshot) -> Iterable[ProblemView]:
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
