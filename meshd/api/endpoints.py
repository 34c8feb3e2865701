"""The endpoints of the API on the unix socket, in one table, which the server and the client read.

What holds for all of them: a request may fail with any leaf of `MeshdError`, which `meshd.api.faults` turns into a
status and an `ErrorView`. A write goes on when its caller hangs up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from meshd.api import schema as s
from meshd.api.faults import ApiFault, Denied, NotReady, Refused, Unknown

Q = TypeVar("Q", bound=s.Request | None)
"""The request's model; None for an endpoint without parameters."""
R = TypeVar("R", bound=s.Request)
A = TypeVar("A", bound=s.Document)


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint(Generic[Q, A]):
    """One operation.

    Attributes:
        name: unique; the operation's id in the OpenAPI document and the action in the audit log.
        method: GET has its request in the query string, POST in a JSON body.
        path: where it is served.
        request: None when it has no parameters.
        answer: the document of a 200.
        summary: what it does, in one line of Markdown.
        refusals: the faults that it raises itself, besides those that every endpoint may raise.
        long_poll: it may wait for something to happen, for `request.wait_s` seconds at most.
        extra_s: how many seconds longer than other endpoints it may take.
        formerly: older paths, which go on working.
        deprecated: nothing in this project uses it any more; other programs may.
        shared: one answer serves all who ask without parameters at about the same time: many watch it, and making it
            takes the longer the larger the cluster is.
    """

    name: str
    method: Literal["GET", "POST"]
    path: str
    request: type[Q] | None
    answer: type[A]
    summary: str
    refusals: tuple[type[ApiFault], ...] = ()
    long_poll: bool = False
    extra_s: float = 0.0
    formerly: tuple[str, ...] = ()
    deprecated: bool = False
    shared: bool = False

    @property
    def has_dry_run(self) -> bool:
        """Whether a request can be a dry run."""
        return self.request is not None and issubclass(self.request, s.DryRunRequest)


class Read(Endpoint[Q, A]):
    """Everybody may ask. It changes nothing."""

    __slots__ = ()


class Write(Endpoint[R, A]):
    """Only root, meshd's own user and the group `cluster.socket_group` may; everybody may ask for a dry run."""

    __slots__ = ()


class ReadByMembers(Endpoint[Q, A]):
    """Only those who may write may ask: the answer can hold other users' words. It changes nothing."""

    __slots__ = ()


STATUS: Read[None, s.StatusView] = Read(
    "status", "GET", "/v1/status", None, s.StatusView,
    "Pools, problems, sources and spending. Answers from memory: it never waits for a cloud.",
    shared=True,
)  # fmt: skip
NODES: Read[None, s.NodesView] = Read(
    "nodes", "GET", "/v1/nodes", None, s.NodesView,
    "All machines that are not GONE, ordered by pool, slot and machine.",
    shared=True,
)  # fmt: skip
PLAN: Read[None, s.PlanView] = Read(
    "plan", "GET", "/v1/plan", None, s.PlanView,
    "What meshd would do now. Changes nothing.",
)  # fmt: skip
PREVIEW: Read[s.ScaleRequest, s.PlanView] = Read(
    "preview", "POST", "/v1/plan", s.ScaleRequest, s.PlanView,
    "What meshd would do after that request. Changes nothing.",
    refusals=(Unknown, Refused),
)  # fmt: skip
JOBS: Read[s.JobsQuery, s.JobsView] = Read(
    "jobs", "GET", "/v1/jobs", s.JobsQuery, s.JobsView,
    "Slurm's queue in the partitions of the pools and of the head, as it was read last.",
    shared=True,
)  # fmt: skip
OFFERS: Read[s.OffersQuery, s.OffersView] = Read(
    "offers", "GET", "/v1/offers", s.OffersQuery, s.OffersView,
    "What the enabled clouds rent, as meshd read it last; with `refresh` meshd reads them first. `sources` has the "
    "time of each reading. `provider` and `region` may be repeated.",
)  # fmt: skip
EXPLAIN: Read[s.ExplainQuery, s.ExplainView] = Read(
    "explain", "GET", "/v1/explain", s.ExplainQuery, s.ExplainView,
    "What a machine, a slot or a pool is doing, and why; or what a job waits for.",
    refusals=(Unknown,),
)  # fmt: skip
EVENTS: Read[s.EventsQuery, s.EventsView] = Read(
    "events", "GET", "/v1/events", s.EventsQuery, s.EventsView,
    "What happened. With `after_id` and nothing new it waits up to `wait_s` seconds, at most 30; go on with `last_id`. "
    "`machine` and `kind` may be repeated.",
    refusals=(Unknown, Refused), long_poll=True,
)  # fmt: skip
COST: Read[s.CostQuery, s.CostView] = Read(
    "cost", "GET", "/v1/cost", s.CostQuery, s.CostView,
    "What was spent since `since`, by pool, provider, machine, day, user, account or job; and how far the budget is "
    "used.",
    refusals=(Refused,),
)  # fmt: skip
LOGS: ReadByMembers[s.LogsQuery, s.LogsView] = ReadByMembers(
    "logs", "GET", "/v1/logs", s.LogsQuery, s.LogsView,
    "The ends of a machine's logs, now or as the head kept them; of one that never joined its console, where the cloud "
    "has one. `part` may be repeated.",
    refusals=(Unknown, Refused),
)  # fmt: skip
AUDIT: ReadByMembers[None, s.AuditView] = ReadByMembers(
    "audit", "GET", "/v1/audit", None, s.AuditView,
    "Lists what lies on every account of the settings, and what of it leaked. It asks the clouds, and changes nothing.",
    extra_s=300.0,
)  # fmt: skip
DOCTOR: Read[None, s.DoctorView] = Read(
    "doctor", "GET", "/v1/doctor", None, s.DoctorView,
    "Checks everything that meshd depends on. Each check has its own deadline; one run serves all who ask within 2 s.",
)  # fmt: skip
VERSION: Read[None, s.VersionView] = Read(
    "version", "GET", "/v1/version", None, s.VersionView, "What runs on the head."
)  # fmt: skip
CALLER: Read[None, s.CallerView] = Read(
    "caller", "GET", "/v1/caller", None, s.CallerView, "Who meshd takes the caller for, and whether it may write."
)  # fmt: skip

SCALE: Write[s.ScaleRequest, s.ScaleAnswer] = Write(
    "scale", "POST", "/v1/scale", s.ScaleRequest, s.ScaleAnswer,
    "Sets a pool's target. Answers once the target is in the journal, before the work. Setting the present target "
    "again is no error: machines that a cooldown holds back are tried again.",
    refusals=(Unknown, Refused),
)  # fmt: skip
DRAIN: Write[s.DrainRequest, s.MachineAnswer] = Write(
    "drain", "POST", "/v1/drain", s.DrainRequest, s.MachineAnswer,
    "The node takes no new jobs; its machine stays rented. Draining twice is no error.",
    refusals=(Unknown, Refused),
)  # fmt: skip
UNDRAIN: Write[s.DrainRequest, s.MachineAnswer] = Write(
    "undrain", "POST", "/v1/undrain", s.DrainRequest, s.MachineAnswer,
    "The node takes jobs again, whoever drained it. `reason` goes into the journal.",
    refusals=(Unknown, Refused),
)  # fmt: skip
REMOVE: Write[s.RemoveRequest, s.MachineAnswer] = Write(
    "remove", "POST", "/v1/remove", s.RemoveRequest, s.MachineAnswer,
    "Gives the machine back: after its jobs, or at once with `force`. The pool's target stays as it is. The name of a "
    "host, or its machine, evicts the host.",
    refusals=(Unknown, Refused),
)  # fmt: skip
FREEZE: Write[s.FreezeRequest, s.FreezeAnswer] = Write(
    "freeze", "POST", "/v1/freeze", s.FreezeRequest, s.FreezeAnswer,
    "meshd rents nothing and ends nothing until a thaw. A freeze that holds already stays as it is.",
)  # fmt: skip
THAW: Write[s.ThawRequest, s.FreezeAnswer] = Write(
    "thaw", "POST", "/v1/thaw", s.ThawRequest, s.FreezeAnswer,
    "meshd rents and ends machines again. It is no error where nothing was frozen. With a provider: meshd goes on "
    "without a listing of it after a restore.",
)  # fmt: skip
HOSTS: Read[None, s.HostsView] = Read(
    "hosts", "GET", "/v1/hosts", None, s.HostsView, "Owned machines, and invitations that nobody has redeemed yet.",
)  # fmt: skip
INVITE: Write[s.InviteRequest, s.InviteAnswer] = Write(
    "invite", "POST", "/v1/hosts/invite", s.InviteRequest, s.InviteAnswer,
    "Invites a machine that exists already to a pool. The answer has the script that makes it a host: with secrets, "
    "for one use. Inviting a name again makes the last invitation void. Only root may.",
    refusals=(Unknown, Refused, Denied, NotReady),
)  # fmt: skip
IMAGES: Read[None, s.ImagesView] = Read(
    "images", "GET", "/v1/images", None, s.ImagesView,
    "Baked images as they were listed last, and those that are being made.",
)  # fmt: skip
BAKE_IMAGE: Write[s.BakeRequest, s.BakeAnswer] = Write(
    "bake_image", "POST", "/v1/images/bake", s.BakeRequest, s.BakeAnswer,
    "Rents a machine and makes an image of it. Answers once it is in the journal, before the work.",
    refusals=(Unknown, Refused),
)  # fmt: skip
PRUNE_IMAGES: Write[s.PruneRequest, s.PruneAnswer] = Write(
    "prune_images", "POST", "/v1/images/prune", s.PruneRequest, s.PruneAnswer,
    "Lists the images again, and deletes those that are neither the newest of their place nor in use.",
    refusals=(Refused,), extra_s=120.0,
)  # fmt: skip
NOTIFY_TEST: Write[s.NotifyTestRequest, s.NotifyTestAnswer] = Write(
    "notify_test", "POST", "/v1/notify/test", s.NotifyTestRequest, s.NotifyTestAnswer,
    "Sends a test message to one receiver of notifications, or to all, and tells what each answered.",
    refusals=(Unknown,), extra_s=30.0,
)  # fmt: skip
RELOAD: Write[s.ReloadRequest, s.ReloadView] = Write(
    "reload", "POST", "/v1/reload", s.ReloadRequest, s.ReloadView,
    "Reads the settings again. If they are wrong, nothing changes and the answer lists the faults.",
)  # fmt: skip

PRICES: Read[None, s.PricesView] = Read(
    "prices", "GET", "/v1/prices", None, s.PricesView,
    "Which prices are in use, how old they are and where they come from.",
)  # fmt: skip
REFRESH_PRICES: Write[s.PricesRefresh, s.PricesRefreshed] = Write(
    "refresh_prices", "POST", "/v1/prices/refresh", s.PricesRefresh, s.PricesRefreshed,
    "Fetches prices from the clouds, all at once, within `prices.refresh_timeout_s`. A cloud that fails is a row of "
    "its own.",
    refusals=(Unknown,), extra_s=600.0,
)  # fmt: skip

AUTH_KEY_ROTATION: Read[None, s.RotationView] = Read(
    "auth_key_rotation", "GET", "/v1/auth-key/rotation", None, s.RotationView,
    "The active rotation of the auth key, or the last one.",
    formerly=("/v1/rotation",),
)  # fmt: skip
ROTATE_AUTH_KEY: Write[s.RotateKeyRequest, s.RotationView] = Write(
    "rotate_auth_key", "POST", "/v1/auth-key/rotation", s.RotateKeyRequest, s.RotationView,
    "Begins a rotation of the auth key. Answers once it is in the journal, before the work.",
    refusals=(Refused,), formerly=("/v1/rotate-key",),
)  # fmt: skip
ABORT_AUTH_KEY_ROTATION: Write[s.AbortRotationRequest, s.RotationView] = Write(
    "abort_auth_key_rotation", "POST", "/v1/auth-key/rotation/abort", s.AbortRotationRequest, s.RotationView,
    "Takes the active rotation back, as long as the old key is not revoked.",
    refusals=(Refused,), formerly=("/v1/rotation/abort",),
)  # fmt: skip
WAIVE_AUTH_KEY_NODE: Write[s.WaiveRequest, s.RotationView] = Write(
    "waive_auth_key_node", "POST", "/v1/auth-key/rotation/waive", s.WaiveRequest, s.RotationView,
    "The active rotation no longer waits for that node.",
    refusals=(Unknown, Refused), formerly=("/v1/rotation/waive",),
)  # fmt: skip

MUNGE_KEY_ROTATION: Read[None, s.MungeRotationView] = Read(
    "munge_key_rotation", "GET", "/v1/munge-key/rotation", None, s.MungeRotationView,
    "The active rotation of the munge key, or the last one.",
    formerly=("/v1/munge-rotation",),
)  # fmt: skip
ROTATE_MUNGE_KEY: Write[s.RotateMungeKeyRequest, s.MungeRotationView] = Write(
    "rotate_munge_key", "POST", "/v1/munge-key/rotation", s.RotateMungeKeyRequest, s.MungeRotationView,
    "Begins a rotation of the munge key. Answers once it is in the journal, before the work.",
    refusals=(Unknown, Refused),
)  # fmt: skip
ABORT_MUNGE_KEY_ROTATION: Write[s.AbortRotationRequest, s.MungeRotationView] = Write(
    "abort_munge_key_rotation", "POST", "/v1/munge-key/rotation/abort", s.AbortRotationRequest, s.MungeRotationView,
    "Takes the active rotation back.",
    refusals=(Refused,),
)  # fmt: skip
WAIVE_MUNGE_KEY_NODE: Write[s.WaiveRequest, s.MungeRotationView] = Write(
    "waive_munge_key_node", "POST", "/v1/munge-key/rotation/waive", s.WaiveRequest, s.MungeRotationView,
    "The active rotation no longer waits for that node.",
    refusals=(Unknown, Refused),
)  # fmt: skip
MUNGE_ROTATION_ACTION: Write[s.MungeRotationRequest, s.MungeRotationView] = Write(
    "munge_rotation_action", "POST", "/v1/munge-rotation", s.MungeRotationRequest, s.MungeRotationView,
    "Begins a rotation of the munge key, aborts it, or waives machines, by `action`.",
    refusals=(Unknown, Refused), deprecated=True,
)  # fmt: skip

NODE_TOKEN_RENEWAL: Read[None, s.TokenRenewalView] = Read(
    "node_token_renewal", "GET", "/v1/node-tokens/renewal", None, s.TokenRenewalView,
    "The last renewal of node tokens.",
    formerly=("/v1/token-renewal",),
)  # fmt: skip
RENEW_NODE_TOKENS: Write[s.TokenRenewalRequest, s.TokenRenewalView] = Write(
    "renew_node_tokens", "POST", "/v1/node-tokens/renewal", s.TokenRenewalRequest, s.TokenRenewalView,
    "Begins a renewal of node tokens. Answers once it is in the journal, before the work.",
    refusals=(Unknown, Refused), formerly=("/v1/token-renewal",),
)  # fmt: skip

ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    STATUS, NODES, JOBS, PLAN, PREVIEW, OFFERS, EXPLAIN, EVENTS, COST, LOGS, AUDIT, DOCTOR, VERSION, CALLER,
    SCALE, DRAIN, UNDRAIN, REMOVE, FREEZE, THAW, HOSTS, INVITE, IMAGES, BAKE_IMAGE, PRUNE_IMAGES, NOTIFY_TEST, RELOAD,
    PRICES, REFRESH_PRICES,
    AUTH_KEY_ROTATION, ROTATE_AUTH_KEY, ABORT_AUTH_KEY_ROTATION, WAIVE_AUTH_KEY_NODE,
    MUNGE_KEY_ROTATION, ROTATE_MUNGE_KEY, ABORT_MUNGE_KEY_ROTATION, WAIVE_MUNGE_KEY_NODE, MUNGE_ROTATION_ACTION,
    NODE_TOKEN_RENEWAL, RENEW_NODE_TOKENS,
)  # fmt: skip
