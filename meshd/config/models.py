"""The tables of the settings: type, range, default and description of each key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from meshd import gpus, standard_paths
from meshd.model.budget import ALL, USD_MAX, BudgetLimits
from meshd.model.guards import LAUNCH_INTERVAL_MAX_S, Guards
from meshd.plan.limits import COUNT_MAX, GPUS_MAX, MEMORY_MAX_MIB, partition_fault, word_fault
from meshd.plan.notices import Rules
from meshd.plan.shares import Share

DEFAULT_PATH = standard_paths.SETTINGS
NAME = r"^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$"
SLURM_DEFAULT = "default"
"""Reserved, in upper or lower case: `NodeName=` and `PartitionName=` of this name only set defaults for later lines."""

KILL_AT_MAX = 100
_Usd = Annotated[float, Field(gt=0, le=USD_MAX)]
_Port = Annotated[int, Field(ge=0, le=65535)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TailnetSettings(_Table):
    """How machines join the tailnet, and how meshd reaches its API."""

    login_server: str = Field("", description="control server; empty: Tailscale's own")
    auth_key_file: Path | None = Field(
        None, description="file with a reusable auth key; none: the credential `tailscale_auth_key`"
    )
    tags: tuple[str, ...] = Field(("tag:meshd",), description="tags of a key that meshd mints")
    accept_dns: bool = Field(False, description="let tailscale write resolv.conf on the machines")
    socket: Path = Field(Path("/run/tailscale/tailscaled.sock"), description="tailscaled's LocalAPI on the head")
    admin_api: Literal["tailscale", "headscale"] = Field(
        "tailscale", description="the control server's API; headscale from 0.30 on also serves Tailscale's"
    )
    headscale_user: str = Field(
        "", description="owner of the keys that meshd mints; headscale before 0.28 wants one, name or number"
    )
    api_base_url: str = Field("https://api.tailscale.com", description="admin API; used only with a credential")
    api_token_file: Path | None = Field(
        None, description="file with an API access token; none: the credential `tailscale_api_token`"
    )
    oauth_client_id: str = Field("", description="OAuth client id; its secret is in oauth_client_secret_file")
    oauth_client_secret_file: Path | None = Field(
        None, description="file with the OAuth client secret; none: the credential `tailscale_oauth_client_secret`"
    )
    tailnet: str = Field("-", description="tailnet name for the admin API; `-` is the credential's own")
    key_mode: Literal["reusable", "per_machine"] | None = Field(
        None,
        description="a key that all machines share, or one for each, for one use, which needs an API credential; "
        "none: the latter, with a credential, where a cloud shows user data to others",
    )
    mint_auth_key: bool = Field(False, description="mint the reusable auth key through the API when there is no file")
    rotate_before_expiry_d: Annotated[float, Field(ge=0, le=60)] = Field(
        14.0, description="days before its end at which meshd replaces an auth key, or warns"
    )
    poll_interval_s: Annotated[float, Field(gt=0)] = 30.0


class SlurmSettings(_Table):
    """Where Slurm's files are and how often it may be reconfigured."""

    conf_dir: Path = Path("/etc/slurm")
    slurmctld_unit: str = "slurmctld.service"
    slurmctld_port: Annotated[int, Field(gt=0, lt=65536)] = 6817
    reconfigure_quiet_s: Annotated[float, Field(ge=0)] = Field(
        0.05, description="meshd collects changes until none has come for this many seconds"
    )
    reconfigure_max_wait_s: Annotated[float, Field(ge=0)] = Field(
        10.0, description="while other machines are about to join or leave, a change waits for them this long"
    )
    reconfigure_spacing_s: Annotated[float, Field(ge=0)] = Field(
        45.0,
        description="a change that jobs need not wait for comes at least this long after the last reconfigure, which "
        "restarts slurmctld's backfill. More than `bf_interval`, which is 30 s by default",
    )
    poll_interval_s: Annotated[float, Field(gt=0)] = 5.0
    command_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    memory_fraction: Annotated[float, Field(gt=0.5, le=1.0)] = 0.95
    head_hosts: bool = Field(True, description="keep the nodes' names in a marked block of the head's /etc/hosts")


class HeadSettings(_Table):
    """The head as a node of its own: `meshctl init` makes it one, and takes that back."""

    compute: bool | None = Field(
        None, description="jobs run on the head too; false: `meshctl init` takes that back; none: as it is"
    )
    partition: str = Field("head", description="the partition that has the head alone")
    default: bool = Field(False, description="the partition is Slurm's default")
    gpus: tuple[Annotated[int, Field(ge=0, lt=GPUS_MAX)], ...] | None = Field(
        None, description="the GPUs that jobs get, by nvidia-smi's index; none: all; empty: none of them"
    )
    core_spec_count: Annotated[int, Field(ge=0, le=COUNT_MAX)] | None = Field(
        None, description="cores that no job gets; none: 1, or 2 where there are 16 or more"
    )
    mem_spec_limit_mib: Annotated[int, Field(ge=0, le=MEMORY_MAX_MIB)] | None = Field(
        None, description="memory that no job gets; none: an eighth of it, and at least 2048 where there is so much"
    )

    @field_validator("partition")
    @classmethod
    def _word(cls, partition: str) -> str:
        if fault := partition_fault(partition):
            raise ValueError(fault)
        return partition


class NodeApiSettings(_Table):
    """The API that machines reach over the tailnet."""

    port: Annotated[int, Field(gt=0, lt=65536)] = 7677
    address: str = Field("", description="address to listen on; empty: the head's tailnet IPv4 address")
    poll_hold_s: Annotated[float, Field(gt=0, le=60)] = 25.0
    packages: tuple[str, ...] = Field(
        ("slurmd", "slurm-client", "munge", "rsync"),
        description="apt packages that a machine gets when its image has no slurmd; empty: such a machine is refused",
    )


class TimingSettings(_Table):
    """Deadlines of the phases, in seconds. Each has one way out: the machine is given back."""

    tick_interval_s: Annotated[float, Field(gt=0)] = 5.0
    provider_poll_interval_s: Annotated[float, Field(gt=0)] = 15.0
    provider_timeout_s: Annotated[float, Field(gt=0)] = Field(60.0, description="for one call to a cloud")
    launch_timeout_s: Annotated[float, Field(gt=0)] = Field(
        120.0, description="for a create call, the wait for its turn included; its outcome is unclear afterwards"
    )
    launch_settle_s: Annotated[float, Field(ge=0)] = Field(
        60.0, description="seconds after an unclear create call in which it may still make a machine"
    )
    boot_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    join_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    configure_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    test_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    join_token_ttl_s: Annotated[float, Field(gt=0)] = 3600.0
    heartbeat_lost_s: Annotated[float, Field(gt=0)] = 120.0
    dead_man_s: Annotated[float, Field(gt=0)] = 3600.0
    orphan_grace_s: Annotated[float, Field(ge=0)] = 300.0
    leave_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    listing_lag_s: Annotated[float, Field(ge=0)] = Field(
        120.0, description="a machine younger than this may be missing from its cloud's listing"
    )
    terminate_again_s: Annotated[float, Field(gt=0)] = 15.0
    lost_after_s: Annotated[float, Field(gt=0)] = Field(
        600.0, description="a machine that its cloud does not end within this time becomes LOST; meshd keeps trying"
    )
    offers_interval_s: Annotated[float, Field(gt=0)] = 300.0
    clock_skew_max_s: Annotated[float, Field(gt=0)] = Field(
        120.0, description="munge allows 300 s; a machine further off than this is refused"
    )
    unfit_grace_s: Annotated[float, Field(ge=0)] = Field(
        30.0, description="report and repair an unfit node when the fault lasts this long"
    )
    replace_unfit_after_s: Annotated[float, Field(ge=0)] = Field(
        300.0, description="a node that is unfit for this long, and has no job, is replaced"
    )
    breaker_failures: Annotated[int, Field(gt=0)] = 3
    breaker_cooldown_s: Annotated[float, Field(ge=0)] = 600.0
    no_capacity_cooldown_s: Annotated[float, Field(ge=0)] = 300.0
    no_capacity_cooldown_max_s: Annotated[float, Field(ge=0)] = Field(
        3600.0, description="the cooldown doubles with each consecutive refusal, up to this"
    )


class BudgetSettings(_Table):
    """What may be spent. At a limit meshd rents nothing more; days and months are those of UTC."""

    usd_per_hour: _Usd | None = Field(None, description="the most that all machines may cost per hour together")
    usd_per_day: _Usd | None = Field(None, description="the most to spend in a day")
    usd_per_month: _Usd | None = Field(None, description="the most to spend in a month")
    warn_at: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="show a problem from this fraction of a limit on"
    )
    kill_at: Annotated[float, Field(ge=1, le=KILL_AT_MAX)] | None = Field(
        None,
        description="give all machines back, and kill their jobs, at this fraction of usd_per_day or usd_per_month; "
        "none: never",
    )

    @model_validator(mode="after")
    def _order(self) -> BudgetSettings:
        if self.kill_at is not None and self.usd_per_day is None and self.usd_per_month is None:
            raise ValueError("kill_at needs usd_per_day or usd_per_month: it is a fraction of them")
        return self

    @property
    def limits(self) -> BudgetLimits | None:
        """The limits; None where there is none."""
        if self.usd_per_hour is None and self.usd_per_day is None and self.usd_per_month is None:
            return None
        return BudgetLimits(self.usd_per_hour, self.usd_per_day, self.usd_per_month, self.warn_at, self.kill_at)


class GuardSettings(_Table):
    """How much meshd does at a time, and what it asks first."""

    max_launches: Annotated[int, Field(gt=0)] | None = Field(
        None, description="machines that may be ordered within launch_interval_s; none: any number"
    )
    launch_interval_s: Annotated[float, Field(gt=0, le=LAUNCH_INTERVAL_MAX_S)] = 600.0
    max_leaving: Annotated[int, Field(gt=0)] | None = Field(
        None, description="nodes that may leave at once since they are idle or unfit; none: any number"
    )
    confirm_usd_per_hour: Annotated[float, Field(ge=0, le=USD_MAX)] = Field(
        0.0, description="`meshctl scale` asks first when all machines would cost more than this per hour"
    )

    @property
    def guards(self) -> Guards:
        """As the plan knows them."""
        return Guards(self.max_launches, self.launch_interval_s, self.max_leaving, self.confirm_usd_per_hour)


class PoolSettings(_Table):
    """A class of interchangeable nodes: a Slurm partition."""

    gpu: str = Field("", description="GPU model, e.g. h100; a prefix also matches h100-sxm and h100-pcie")
    gpu_memory_min_gib: Annotated[int, Field(ge=0)] = Field(
        0, description="of one GPU, as it is sold: 24 takes an L4 or A10G; 0: any"
    )
    gpus_per_node: Annotated[int, Field(ge=0, le=16)] = Field(
        1, description="GPUs in one machine; what a free slot promises"
    )
    gpus_per_node_max: Annotated[int, Field(ge=0, le=16)] | None = Field(
        None, description="also rent machines with up to this many GPUs; none: exactly gpus_per_node"
    )
    arch: Literal["x86_64", "arm64"] = Field("x86_64", description="CPU architecture of all machines of the pool")
    cpus_min: Annotated[int, Field(gt=0, le=COUNT_MAX)] | None = Field(
        None, description="of the smallest machine; a free slot promises this. None: by what can be rented, or 1"
    )
    memory_min_mib: Annotated[int, Field(gt=0, le=MEMORY_MAX_MIB)] | None = Field(
        None, description="likewise; none: by what can be rented, or 1024"
    )
    max_nodes: Annotated[int, Field(gt=0, le=10000)] = 8
    providers: tuple[str, ...] = Field((), description="in order of preference; empty: every enabled one")
    regions: tuple[str, ...] = Field((), description="regions or zones to rent in; empty: every one of the providers'")
    max_usd_per_gpu_hour: _Usd | None = None
    max_usd_per_hour: _Usd | None = Field(None, description="the most that all machines of the pool may cost together")
    budget: BudgetSettings | None = Field(None, description="what may be spent for this pool, beside [budget]")
    overshoot_max_gpus: Annotated[int, Field(ge=0)] | None = Field(
        None, description="rent at most this many GPUs more than the target; none: as many as is cheapest"
    )
    min_gpus: Annotated[int, Field(ge=0)] = Field(0, description="never fewer than these, whatever is idle")
    idle_timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="meshd gives back a node without a job for this long, down to min_gpus; none: never"
    )
    scale_from_queue: bool | None = Field(
        None,
        description="rent the nodes that Slurm powers up for its jobs; none: true, but false with gpus_per_node_max",
    )
    spread: bool = Field(False, description="the nodes of one job may be in several places; false: all in one")
    replace_unfit: bool = Field(
        True, description="a node that is not fit and has no job is given back, and another is rented in its place"
    )
    path: Literal["any", "direct"] = Field(
        "any", description="direct: a machine whose tailnet path to the head stays relayed is given back"
    )
    spot: Literal["never", "if_cheaper", "prefer", "only"] = "never"
    pods: Literal["never", "allow", "only"] | None = Field(
        None,
        description="whether to rent pods: containers without systemd; none: allow, or with [share] never, since they "
        "have no share",
    )
    partition: str = Field("", description="partition name; empty: the pool's name")
    features: tuple[str, ...] = ()
    packages: tuple[str, ...] = Field((), description="apt packages that each machine gets besides node_api.packages")
    setup: str = Field(
        "", description="a script that runs once as root on each new machine: its path here, or its text"
    )
    setup_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    env: dict[str, str] = Field({}, description="variables of every job; those that a job sets itself stay")
    default: bool = Field(False, description="the partition is Slurm's default")

    @model_validator(mode="before")
    @classmethod
    def _without_gpus(cls, table: Any) -> Any:
        """A pool that names no GPU model has machines without."""
        return {"gpus_per_node": 0, **table} if isinstance(table, dict) and not table.get("gpu") else table

    @field_validator("gpu")
    @classmethod
    def _one_spelling(cls, gpu: str) -> str:
        model = gpus.asked(gpu)
        if model and (fault := word_fault("GPU model", model)):
            raise ValueError(fault)
        return model


class ShareSettings(_Table):
    """A directory that every node mounts by NFS. docs/files.md says how to set one up."""

    path: str = Field(description="where the nodes have it; on the head it is at the same path")
    server: str = Field("", description="name or address of the NFS server; empty: the head")
    source: str = Field("", description="its path at the server; empty: the same path")
    options: tuple[str, ...] = Field((), description='more options of mount, e.g. "ro" or "nconnect=4"')


class UsersSettings(_Table):
    """Which accounts of the head every node has too."""

    group: str = Field(
        "", pattern=r"^([A-Za-z_][A-Za-z0-9_.@-]{0,31})?$", description="only members of this group; empty: every user"
    )
    uid_min: Annotated[int, Field(ge=1000, le=4294967293)] = Field(1000, description="no account below is a user")
    uid_max: Annotated[int, Field(ge=1000, le=4294967293)] = Field(2147483647, description="no account above is a user")
    image_accounts: Literal["move", "keep"] = Field(
        "move",
        description="an account of a machine's image that has a user's number or name: move gives it another number, "
        "keep leaves it and reports a clash",
    )

    @model_validator(mode="after")
    def _order(self) -> UsersSettings:
        if self.uid_min > self.uid_max:
            raise ValueError("uid_min is above uid_max: no account would be a user")
        return self


class ProviderSettings(BaseModel):
    """A provider's table. Its adapter checks all keys but `enabled` and `max_concurrent_calls`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    enabled: bool = True
    max_concurrent_calls: Annotated[int, Field(gt=0, le=64)] = Field(
        64,
        description="the most concurrent create calls, and other calls; meshd finds the rate that a cloud allows",
    )

    def own(self) -> dict[str, Any]:
        """The adapter's own keys."""
        return dict(self.model_extra or {})


class PriceSettings(_Table):
    """How old prices from tables may be."""

    stale_after_d: Annotated[float, Field(gt=0)] = Field(
        30.0, description="older prices are stale: a warning where a limit in USD is set"
    )
    budget_needs_fresh: bool = Field(
        False, description="rent nothing by stale prices where a limit in USD is set; false: only warn"
    )
    refresh_after_d: Annotated[float, Field(ge=0)] = Field(
        7.0, description="fetch prices again when they are older than this, where the credential allows it; 0: never"
    )
    refresh_timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(
        180.0, description="for fetching all prices of one cloud"
    )


class MetricsSettings(_Table):
    """Metrics in Prometheus' format. The unix socket serves them in any case."""

    listen: str = Field(
        "",
        pattern=r"^(|[A-Za-z0-9.-]+:\d{1,5}|\[[0-9a-fA-F:.%a-z]+\]:\d{1,5})$",
        description="HOST:PORT to serve them on as well; empty: nowhere. Anybody who reaches it may read them",
    )
    node_exporter_port: _Port = Field(9100, description="of node_exporter on nodes, for `/v1/targets`; 0: none")
    dcgm_exporter_port: _Port = Field(9400, description="of NVIDIA's dcgm-exporter on nodes with GPUs; 0: none")
    nvidia_gpu_exporter_port: _Port = Field(9835, description="of nvidia_gpu_exporter on nodes with GPUs; 0: none")

    @field_validator("listen")
    @classmethod
    def _port(cls, listen: str) -> str:
        if listen and not 0 < int(listen.rpartition(":")[2]) < 65536:
            raise ValueError("the port is between 1 and 65535")
        return listen

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port; None for nowhere."""
        host, _, port = self.listen.rpartition(":")
        return (host.strip("[]"), int(port)) if self.listen else None

    @property
    def exporter_ports(self) -> tuple[int, int, int]:
        """Of node_exporter, dcgm-exporter and nvidia_gpu_exporter; 0 for none."""
        return self.node_exporter_port, self.dcgm_exporter_port, self.nvidia_gpu_exporter_port


class MlflowSettings(_Table):
    """MLflow's server on the head, as `deploy/services/mlflow/install` sets it up."""

    enabled: bool = Field(
        False, description="every job has the server's address in MLFLOW_TRACKING_URI; doctor checks it"
    )
    port: Annotated[int, Field(gt=0, lt=65536)] = Field(
        5000, description="on the head's tailnet address. Anybody who reaches it may read and write all experiments"
    )
    artifacts: str = Field(
        "",
        pattern=r"^(|/[^\s%\\]+)$",
        description="folder for the files of runs, on a share; empty: /var/lib/meshd-mlflow/artifacts. "
        "After a change run the installer again",
    )

    def uri(self, head: str) -> str:
        """The server's address, which MLflow's clients take.

        Args:
            head: the head's IPv4 address on the tailnet.
        """
        return f"http://{head}:{self.port}"


class WebSettings(_Table):
    """A page that shows the cluster in a browser, on the head's tailnet address."""

    enabled: bool = Field(False, description="serve the page, and keep samples for its plots")
    port: Annotated[int, Field(gt=0, lt=65536)] = Field(7680, description="on the head's tailnet address")
    allow: tuple[Annotated[str, Field(pattern=r"^(\*@)?[^\s*,]{1,200}$")], ...] = Field(
        (),
        max_length=1000,
        description="who may look: logins, *@DOMAIN for all of a domain, capabilities that the tailnet's policy "
        "grants, groups, and tags of devices; empty: nobody",
    )
    names: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")], ...] = Field(
        (), description="more names under which browsers may ask for it, besides those that the tailnet gives the head"
    )
    slurm_web_url: str = Field(
        "", pattern=r"^(|https?://[^\s\"'<>]{1,500})$", description="address of Slurm-web, to link to; empty: no link"
    )

    @model_validator(mode="after")
    def _somebody(self) -> WebSettings:
        if self.enabled and not self.allow:
            raise ValueError('enabled needs allow: say who may look, e.g. allow = ["ann@example.com"]')
        return self


class NotifySettings(_Table):
    """A receiver that is told of problems: a webhook, or mail."""

    url: str = Field("", description="webhook; https, or http to localhost and the tailnet's addresses")
    url_file: Path | None = Field(
        None, description="file with the webhook's URL, where that is a secret; none: the credential `notify_NAME_url`"
    )
    format: Literal["meshd", "slack", "discord", "ntfy"] = Field(
        "meshd", description="meshd: JSON with stable codes; slack: what Slack and Mattermost read; discord; ntfy"
    )
    hmac_secret_file: Path | None = Field(
        None, description="file with the secret that signs webhooks; none: the credential `notify_NAME_hmac_secret`"
    )
    mail_to: tuple[str, ...] = Field((), max_length=20, description="mail addresses, in place of a webhook")
    mail_from: str = Field("", description="the sender's address; required for mail")
    smtp_server: str = Field("127.0.0.1", description="the mail server")
    smtp_port: Annotated[int, Field(gt=0, lt=65536)] = Field(25, description="465 for tls, 587 for starttls")
    smtp_tls: Literal["none", "starttls", "tls"] = Field("none", description="none: only for a server on this machine")
    smtp_user: str = Field("", max_length=200, description="empty: no login")
    smtp_password_file: Path | None = Field(
        None, description="file with its password; none: the credential `notify_NAME_smtp_password`"
    )
    ca_file: Path | None = Field(None, description="certificates in PEM that are trusted beside the system's")
    min_severity: Literal["info", "warning", "error"] = Field("warning", description="nothing below is told")
    after_s: Annotated[float, Field(ge=0)] = Field(60.0, description="a problem is told when it has lasted so long")
    group_s: Annotated[float, Field(ge=0)] = Field(
        30.0, description="it waits so long for others, which come in the same message"
    )
    repeat_s: Annotated[float, Field(ge=60)] = Field(
        86400.0, description="a problem that does not end is told again after this"
    )
    resolved_after_s: Annotated[float, Field(ge=0)] = Field(
        300.0, description="a problem is over when it has been away for so long"
    )
    max_per_hour: Annotated[int, Field(gt=0, le=1000)] = Field(20, description="messages; the rest waits")

    @property
    def rules(self) -> Rules:
        """How it wants to be told."""
        return Rules(
            self.min_severity, self.after_s, self.group_s, self.repeat_s, self.resolved_after_s, self.max_per_hour
        )


class LogSettings(_Table):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "pretty"] = Field("auto", description="auto: pretty on a terminal, otherwise JSON")


class ClusterSettings(_Table):
    """The cluster's name, and where meshd keeps its state."""

    name: str = Field("mesh", pattern=NAME, description="in every machine's name and tag; never change it later")
    state_dir: Path = Path("/var/lib/meshd")
    socket: Path = standard_paths.SOCKET
    ssh_key: Path = Field(standard_paths.SSH_KEY, description="root's key for its nodes; `meshctl init` makes it")
    socket_group: str = Field("meshd", description="members may change things; others may read")


class Settings(BaseSettings):
    """All settings. Build with `load()`."""

    model_config = SettingsConfigDict(
        env_prefix="MESHD_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    cluster: ClusterSettings = ClusterSettings()
    tailnet: TailnetSettings = TailnetSettings()
    slurm: SlurmSettings = SlurmSettings()
    head: HeadSettings = HeadSettings()
    node_api: NodeApiSettings = NodeApiSettings()
    timing: TimingSettings = TimingSettings()
    prices: PriceSettings = PriceSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    mlflow: MlflowSettings = MlflowSettings()
    web: WebSettings = WebSettings()
    budget: BudgetSettings = BudgetSettings()
    guards: GuardSettings = GuardSettings()
    share: dict[str, ShareSettings] = {}
    users: UsersSettings = UsersSettings()
    notify: dict[str, NotifySettings] = {}
    pools: dict[str, PoolSettings] = {}
    providers: dict[str, ProviderSettings] = {}

    @property
    def shares(self) -> tuple[Share, ...]:
        """What nodes mount."""
        return tuple(Share(name, one.path, one.server, one.source, one.options) for name, one in self.share.items())

    @property
    def budgets(self) -> dict[str, BudgetLimits]:
        """The limits, by pool; "" over all pools. Those without limits are absent."""
        tables = {ALL: self.budget, **{name: pool.budget for name, pool in self.pools.items() if pool.budget}}
        return {name: limits for name, table in tables.items() if (limits := table.limits) is not None}

    def from_queue(self, pool: PoolSettings) -> bool:
        """Whether Slurm's queue decides how many nodes a pool has."""
        if pool.scale_from_queue is not None:
            return pool.scale_from_queue
        # Every slot of a pool that the queue drives promises the same: machines of several sizes would be wasted on it.
        return (pool.gpus_per_node_max or pool.gpus_per_node) <= pool.gpus_per_node

    def pod_policy(self, pool: PoolSettings) -> Literal["never", "allow", "only"]:
        """Whether a pool rents pods. Where users' files are on a share, output on a pod would be lost with it."""
        return pool.pods or ("never" if self.share else "allow")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file, which comes in as init values."""
        return env_settings, init_settings
