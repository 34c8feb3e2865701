"""What the daemon does for people: one method for each thing that can be asked over the unix socket."""

from __future__ import annotations

from typing import Protocol

from meshd.api.auth import Actor
from meshd.api.schema import (
    AbortRotationRequest,
    DoctorView,
    DrainRequest,
    EventsQuery,
    EventsView,
    ExplainView,
    MachineAnswer,
    MungeRotationRequest,
    MungeRotationView,
    NodesView,
    OffersQuery,
    OffersView,
    PlanView,
    PricesRefresh,
    PricesRefreshed,
    PricesView,
    ReloadRequest,
    ReloadView,
    RemoveRequest,
    RotateKeyRequest,
    RotationView,
    ScaleAnswer,
    ScaleRequest,
    StatusView,
    TokenRenewalRequest,
    TokenRenewalView,
    VersionView,
    WaiveRequest,
)


class HeadApi(Protocol):
    """The desk at which requests are served.

    The server has checked who asks: methods with an `actor` are called only for those who may write, and the actor is
    given for the journal. Every method may raise any leaf of MeshdError, and meshd.api.faults for what is the
    caller's to mend: BadRequest (wrong in itself), Unknown (no such machine or pool), Refused (not now), NotReady.
    A write that was begun goes on when its caller hangs up.
    """

    async def status(self) -> StatusView:
        """How the whole stands. Answers from memory: never waits for a cloud."""
        ...

    async def nodes(self) -> NodesView:
        """All machines that are not GONE, ordered by pool, slot and machine."""
        ...

    async def plan(self, request: ScaleRequest | None) -> PlanView:
        """What the next tick would do; with a request: what it would do after that. Changes nothing."""
        ...

    async def offers(self, query: OffersQuery) -> OffersView:
        """What the enabled clouds rent, by their last readings; with `refresh` they are read anew first.

        A cloud that is not read in time is shown as it was read last: `sources` tells when.
        """
        ...

    async def explain(self, subject: str) -> ExplainView:
        """What a machine, a slot or a pool is doing and why. Raises Unknown, with names that are near."""
        ...

    async def prices(self) -> PricesView:
        """Which prices are in use, how old they are and where they come from."""
        ...

    async def refresh_prices(self, request: PricesRefresh, actor: Actor) -> PricesRefreshed:
        """Fetch prices from the clouds, all at once; one that fails is a row of its own. Raises Unknown for a provider
        that is not enabled.
        """
        ...

    async def scale(self, request: ScaleRequest, actor: Actor) -> ScaleAnswer:
        """Set a pool's target, unless `dry_run`. Returns once the target is journaled, before the work.

        Asking for the target that is already set is no error: the plan then has no steps of its own, and machines
        that a breaker holds back are tried again.
        """
        ...

    async def drain(self, request: DrainRequest, actor: Actor) -> MachineAnswer:
        """Let the node take no new jobs; its machine stays rented. Draining twice is no error."""
        ...

    async def undrain(self, request: DrainRequest, actor: Actor) -> MachineAnswer:
        """Let the node take jobs again, whoever drained it; `reason` is for the journal."""
        ...

    async def remove(self, request: RemoveRequest, actor: Actor) -> MachineAnswer:
        """Give the machine back: after its jobs, or at once when forced. The pool's target stays as it is."""
        ...

    async def events(self, query: EventsQuery) -> EventsView:
        """The events that a query asks for. Raises Unknown for a machine, pool or kind that there is not."""
        ...

    async def munge_rotation(self) -> MungeRotationView:
        """The rotation of the munge key that is under way, or the last one."""
        ...

    async def rotate_munge_key(self, request: MungeRotationRequest, actor: Actor) -> MungeRotationView:
        """Begin a rotation, unless `dry_run`, abort it, or waive machines. Returns once it is journaled."""
        ...

    async def token_renewal(self) -> TokenRenewalView:
        """The last renewal of node tokens."""
        ...

    async def renew_tokens(self, request: TokenRenewalRequest, actor: Actor) -> TokenRenewalView:
        """Begin a renewal, unless `dry_run`. Returns once it is journaled. Raises BadRequest, Refused, Unknown."""
        ...

    async def rotation(self) -> RotationView:
        """The rotation of the auth key that is under way, or the last one."""
        ...

    async def rotate_key(self, request: RotateKeyRequest, actor: Actor) -> RotationView:
        """Begin a rotation, unless `dry_run`. Returns once it is journaled, before the work."""
        ...

    async def abort_rotation(self, request: AbortRotationRequest, actor: Actor) -> RotationView:
        """Take the rotation back that is under way, as long as the old key is not revoked."""
        ...

    async def waive(self, request: WaiveRequest, actor: Actor) -> RotationView:
        """Let the rotation not wait for a node."""
        ...

    async def reload(self, request: ReloadRequest, actor: Actor) -> ReloadView:
        """Read the settings again. With wrong ones nothing changes, and the answer says what is wrong."""
        ...

    async def doctor(self) -> DoctorView:
        """Check everything that meshd depends on; each check has its own deadline and none raises."""
        ...

    async def version(self) -> VersionView:
        """What runs on the head."""
        ...
