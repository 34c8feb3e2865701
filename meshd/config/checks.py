"""PURE: checks beyond the types of single settings: limits of Slurm, contradictions, impossible values.

meshd refuses settings with `faults`, since it could not do what they say. It only shows `doubts`, and runs: a head that
is down is worse.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel

from meshd import gpus
from meshd.codes import FaultCode
from meshd.config.models import SLURM_DEFAULT, NotifySettings, PoolSettings, Settings
from meshd.errors import Fault
from meshd.model.ids import slot_index
from meshd.plan.limits import word_fault
from meshd.plan.notify_places import host_fault, is_near, mail_fault, url_fault
from meshd.plan.shares import share_faults
from meshd.secret_signs import names_secret, sign_of
from meshd.settings_words import dotted, near, show

Key = tuple[str, ...]

YEAR_S = 366 * 86400.0
SLOTS_MAX = 65_000
"""Slurm's MaxNodeCount is 65,536 by default and at most."""
SOCKET_MAX_B = 107
"""The most bytes in the path of a unix socket (unix(7))."""

PACKAGES_MAX = 128
RECEIVERS_MAX = 16
SCRIPT_MAX_B = 64 * 1024
ENV_MAX = 64
ENV_VALUE_MAX_B = 4096

_SET_ALREADY = frozenset(
    {"HOME", "IFS", "LOGNAME", "OPTIND", "PATH", "PPID", "PS1", "PS2", "PS4", "PWD", "SHELL", "USER"}
)
"""Variables that Slurm or the shell of the task prolog always has."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_POOL = re.compile(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?")
_TAG = re.compile(r"tag:[a-zA-Z][a-zA-Z0-9-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?([=/][A-Za-z0-9.+:~-]+)?")
_URL = re.compile(r"https?://[^/\s?#@]+(/[^\s?#]*)?")
_SECRETS_PLACE = "put it into a file of mode 0600 below /etc/meshd/credentials (docs/operations.md, Credentials)"


def faults(settings: Settings) -> Iterator[Fault]:
    """The reasons to refuse the settings."""
    yield from _names(settings)
    for name, pool in settings.pools.items():
        yield from _pool(name, pool, settings)
    yield from _slots(settings.pools)
    yield from _shares(settings)
    yield from _words_of_others(settings)
    yield from _notify(settings)
    yield from _paths(settings)
    yield from _durations(settings, ())


def doubts(settings: Settings, table: Mapping[str, object], mode: int, source: str) -> Iterator[Fault]:
    """Settings that are probably mistakes, although meshd can run with them.

    Args:
        settings: accepted settings.
        table: the parsed file.
        mode: the file's permission bits.
        source: its path.
    """
    yield from secrets_in(table, mode)
    if mode & 0o002:
        yield Fault(
            f"everybody may write this file (mode {mode:04o})", f"`chmod 0644 {source}`", code=FaultCode.FILE_WRITABLE
        )
    for name, pool in settings.pools.items():
        yield from _unknown_gpu(name, pool)
        yield from _off(name, pool, settings)
        yield from _gang_in_parts(name, pool, settings)
    yield from _timing(settings)


def _gang_in_parts(name: str, pool: PoolSettings, settings: Settings) -> Iterator[Fault]:
    """A job whose machines are not all ordered at once: the first ones cost money while they wait for the others."""
    most = settings.guards.max_launches
    if most is not None and most < pool.max_nodes and settings.from_queue(pool):
        yield Fault(
            f"a job on more than {most} nodes of {name} gets its machines in parts, {most} in "
            f"{settings.guards.launch_interval_s:g} s: the first ones cost money while they wait for the others",
            f"raise guards.max_launches to {pool.max_nodes}, or lower pools.{name}.max_nodes",
            ("guards", "max_launches"),
            code=FaultCode.GANG_IN_PARTS,
        )


def secrets_in(table: Mapping[str, object], mode: int) -> Iterator[Fault]:
    """Secrets in a file that everybody may read.

    Args:
        table: the parsed file, accepted or not.
        mode: its permission bits.
    """
    if mode & 0o004:
        yield from _secrets(table, ())


def _names(settings: Settings) -> Iterator[Fault]:
    for name in settings.pools:
        key = ("pools", name)
        if not _POOL.fullmatch(name):
            rule = "lower-case letters, digits and dashes, at most 20, a letter first, no dash last"
            yield Fault(
                f"{dotted(key)}: pool name {name!r} is not possible", f"use {rule}", key, code=FaultCode.POOL_NAME
            )
        elif name == SLURM_DEFAULT:
            yield Fault(
                f"{dotted(key)}: {name!r} is a reserved word in Slurm", "rename the pool", key, code=FaultCode.POOL_NAME
            )
    named: list[Key] = [("pools", name, "default") for name, pool in settings.pools.items() if pool.default]
    named += [("head", "default")] if settings.head.default else []
    if len(named) > 1:
        which = ", ".join(dotted(key[:-1]) for key in named)
        text = f"more than one pool, or a pool and the head, has default = true: {which}"
        yield Fault(text, "leave it at one of them", named[1], code=FaultCode.TWO_DEFAULTS)
    yield from _head(settings)


def _head(settings: Settings) -> Iterator[Fault]:
    for name, pool in settings.pools.items():
        if settings.head.compute and (pool.partition or name) == settings.head.partition:
            yield Fault(
                f"head.partition is {settings.head.partition!r}, which is the partition of the pool {name}",
                "give one of them another name: a partition over both is a line of your own (docs/workstation.md)",
                ("head", "partition"), code=FaultCode.NAMED_TWICE,
            )  # fmt: skip


def _pool(name: str, pool: PoolSettings, settings: Settings) -> Iterator[Fault]:
    own: Key = ("pools", name)
    key: Key
    yield from _pool_gpus(own, pool)
    for index, provider in enumerate(pool.providers):
        if provider not in settings.providers:
            key = (*own, "providers", str(index))
            known = ", ".join(settings.providers) or "no table at all"
            cure = near(provider, settings.providers) or f"add [providers.{provider}]; there is {known}"
            yield Fault(
                f"{dotted(own)}.providers names {provider}, which has no [providers.*] table",
                cure,
                key,
                code=FaultCode.NO_SUCH_PROVIDER,
            )
    for index, region in enumerate(pool.regions):
        if not region.strip() or re.search(r"[*?\[\]]", region):
            key = (*own, "regions", str(index))
            cure = "write the whole names; without regions it is every one of the providers'"
            yield Fault(
                f"{dotted(key)} = {show(region)}: regions have no wildcards", cure, key, code=FaultCode.BAD_VALUE
            )
    for index, feature in enumerate(pool.features):
        key = (*own, "features", str(index))
        if word_fault("feature", feature):
            cure = "use letters, digits, dots, dashes and underscores"
            yield Fault(
                f"{dotted(key)} = {show(feature)}: Slurm takes no such feature", cure, key, code=FaultCode.BAD_VALUE
            )
    if pool.partition and word_fault("partition", pool.partition):
        key = (*own, "partition")
        cure = "use only letters, digits, dots, dashes and underscores"
        yield Fault(
            f"{dotted(key)} = {show(pool.partition)}: Slurm takes no such partition",
            cure,
            key,
            code=FaultCode.BAD_VALUE,
        )
    elif pool.partition.lower() == SLURM_DEFAULT:
        key = (*own, "partition")
        text = f"{dotted(key)} = {show(pool.partition)}: it is a reserved word in Slurm"
        yield Fault(text, "choose another name", key, code=FaultCode.BAD_VALUE)
    yield from _pool_env(own, pool)
    yield from _packages((*own, "packages"), pool.packages)
    if pool.setup and not is_text(pool.setup) and not pool.setup.startswith("/"):
        key = (*own, "setup")
        text = f"{dotted(key)} = {show(pool.setup)}: it is no absolute path, and no script"
        yield Fault(text, 'e.g. "/etc/meshd/setup-h100.sh"', key, code=FaultCode.BAD_VALUE)
    elif "\0" in pool.setup or len(pool.setup.encode()) > SCRIPT_MAX_B:
        key = (*own, "setup")
        text = f"{dotted(key)}: it has a NUL character, or more than {SCRIPT_MAX_B} bytes"
        yield Fault(text, "have it fetch what is large", key, code=FaultCode.BAD_VALUE)


def _packages(own: Key, packages: Sequence[str]) -> Iterator[Fault]:
    """Names that apt cannot have, and more than PACKAGES_MAX."""
    if len(packages) > PACKAGES_MAX:
        text = f"{dotted(own)}: {len(packages)} packages"
        yield Fault(text, f"at most {PACKAGES_MAX}; or use an image that has them", own, code=FaultCode.BAD_VALUE)
    for index, package in enumerate(packages):
        if not _PACKAGE.fullmatch(package):
            key = (*own, str(index))
            text = f"{dotted(key)} = {show(package)}: apt has no such name"
            yield Fault(text, 'e.g. "slurmd"', key, code=FaultCode.BAD_VALUE)


def is_text(setup: str) -> bool:
    """Whether `pools.NAME.setup` holds the script itself; otherwise it is a path."""
    return setup.startswith("#!") or "\n" in setup


def _pool_env(own: Key, pool: PoolSettings) -> Iterator[Fault]:
    """Variables that a job cannot have."""
    if len(pool.env) > ENV_MAX:
        text = f"{dotted((*own, 'env'))}: {len(pool.env)} variables"
        yield Fault(text, f"at most {ENV_MAX}", (*own, "env"), code=FaultCode.BAD_VALUE)
    for name, value in pool.env.items():
        key = (*own, "env", name)
        if not _VARIABLE.fullmatch(name):
            text = f"{dotted(own)}.env: {show(name)} is no variable's name"
            yield Fault(text, "use letters, digits and underscores, no digit first", key, code=FaultCode.BAD_VALUE)
        elif name in _SET_ALREADY:
            text = f"{dotted(key)}: each job has this variable already, and keeps it"
            yield Fault(text, "set it in the job", key, code=FaultCode.BAD_VALUE)
        elif name.startswith("SLURM"):
            text = f"{dotted(key)}: names that begin with SLURM are Slurm's own"
            yield Fault(text, "choose another name", key, code=FaultCode.BAD_VALUE)
        if len(value.encode()) > ENV_VALUE_MAX_B or any(not char.isprintable() for char in value):
            text = f"{dotted(key)}: the value has control characters, or more than {ENV_VALUE_MAX_B} bytes"
            yield Fault(text, "write one line, shorter", key, code=FaultCode.BAD_VALUE)


def _pool_gpus(own: Key, pool: PoolSettings) -> Iterator[Fault]:
    """Number and model of a pool's GPUs, and whether its nodes have room for min_gpus."""
    name = dotted(own)
    few, many = pool.gpus_per_node, pool.gpus_per_node_max
    if not pool.gpu and max(few, many or 0):
        key = (*own, "gpus_per_node" if few else "gpus_per_node_max")
        cure = 'say which, e.g. gpu = "h100"'
        yield Fault(
            f"{dotted(key)} = {max(few, many or 0)}: gpus_per_node is more than 0, but no gpu is named",
            cure,
            key,
            code=FaultCode.GPU_NEEDED,
        )
        return
    if not pool.gpu and pool.gpu_memory_min_gib:
        key = (*own, "gpu_memory_min_gib")
        yield Fault(
            f"{dotted(key)} = {pool.gpu_memory_min_gib}: no gpu is named",
            'add gpu = "h100", or such',
            key,
            code=FaultCode.GPU_NEEDED,
        )
    if many is not None and many < few:
        key = (*own, "gpus_per_node_max")
        yield Fault(
            f"{dotted(key)} = {many} is less than gpus_per_node = {few}",
            "raise it, or leave it out",
            key,
            code=FaultCode.GPU_RANGE,
        )
        return
    room = pool.max_nodes * max(many or few, 1)
    if pool.min_gpus > room:
        key = (*own, "min_gpus")
        each = counted_gpus(many or few)
        text = f"{name}.min_gpus = {pool.min_gpus}: max_nodes = {pool.max_nodes} with {each} has room for {room}"
        nodes = -(-pool.min_gpus // max(many or few, 1))
        yield Fault(text, f"at most {room}, or max_nodes = {nodes}", key, code=FaultCode.NO_ROOM)


def counted_gpus(each: int) -> str:
    """The GPUs of each machine as text: `8 GPUs each`."""
    return f"{each} GPU{'' if each == 1 else 's'} each" if each else "1 machine each"


def _slots(pools: Mapping[str, PoolSettings]) -> Iterator[Fault]:
    """Pool names that are also slots of another pool, and more slots than Slurm allows."""
    for name in pools:
        for other, pool in pools.items():
            index = slot_index(other, name)
            if index is not None and index <= pool.max_nodes:
                key = ("pools", name)
                text = f"{dotted(key)}: {name} is also slot {index} of pool {other}"
                yield Fault(text, "give one of the two pools another name", key, code=FaultCode.POOL_NAME)
    total = sum(pool.max_nodes for pool in pools.values())
    if total > SLOTS_MAX:
        text = f"all pools together have {total} slots, and Slurm knows {SLOTS_MAX} nodes at most"
        yield Fault(text, "lower max_nodes", ("pools",), code=FaultCode.TOO_MANY_SLOTS)


def _shares(settings: Settings) -> Iterator[Fault]:
    """Shares that no node could mount, or that would harm it."""
    for fault in share_faults(settings.shares):
        key = ("share", *([fault.name] if fault.name else []), *([fault.key] if fault.key else []))
        value = getattr(settings.share[fault.name], fault.key) if fault.key not in {"", "options"} else None
        named = f"{dotted(key)} = {show(value)}" if value is not None else dotted(key)
        yield Fault(f"{named}: {fault.text}", fault.cure, key, code=FaultCode.SHARE)


def _notify(settings: Settings) -> Iterator[Fault]:
    """Receivers to which nothing can or may be sent."""
    if len(settings.notify) > RECEIVERS_MAX:
        text = f"notify: {len(settings.notify)} receivers"
        yield Fault(text, f"at most {RECEIVERS_MAX}", ("notify",), code=FaultCode.BAD_VALUE)
    for name, one in settings.notify.items():
        own: Key = ("notify", name)
        if not _POOL.fullmatch(name):
            cure = "use lower-case letters, digits and dashes, at most 20, a letter first, no dash last"
            yield Fault(f"{dotted(own)}: no receiver has such a name", cure, own, code=FaultCode.BAD_VALUE)
        for key, fault, cure in _receiver(one):
            yield Fault(f"{dotted((*own, key))}: {fault}", cure, (*own, key), code=FaultCode.BAD_VALUE)


def _receiver(one: NotifySettings) -> Iterator[tuple[str, str, str]]:
    """(key, fault, cure) of one receiver's table. The URL is not shown: it may be a secret."""
    if one.url and (fault := url_fault(one.url)):
        yield "url", fault, 'e.g. "https://alerts.example.org/meshd"'
    for key in ("url_file", "hmac_secret_file", "smtp_password_file", "ca_file"):
        path = getattr(one, key)
        if path is not None and not path.is_absolute():
            yield key, "it is no absolute path", 'e.g. "/etc/meshd/credentials/notify/ops_url"'
    webhook = bool(one.url or one.url_file)
    if webhook and one.mail_to:
        yield "mail_to", "a receiver is a webhook or mail, and this one is both", "make two tables of it"
    if one.url and one.url_file:
        yield "url_file", "there is a url too", "leave one of them out"
    if one.mail_to:
        yield from _mail(one)
    elif one.mail_from:
        yield "mail_from", "there is no mail_to", 'e.g. mail_to = ["ops@example.org"]'


def _mail(one: NotifySettings) -> Iterator[tuple[str, str, str]]:
    for address in one.mail_to:
        if fault := mail_fault(address):
            yield "mail_to", f"{show(address)}: {fault}", 'e.g. ["ops@example.org"]'
    if fault := mail_fault(one.mail_from):
        yield "mail_from", f"{show(one.mail_from)}: {fault}", 'e.g. "meshd@example.org"'
    if fault := host_fault(one.smtp_server):
        yield "smtp_server", f"{show(one.smtp_server)}: {fault}", 'e.g. "smtp.example.org"'
    if one.smtp_tls == "none" and not is_near(one.smtp_server):
        text = "mail to another machine goes over TLS"
        yield "smtp_tls", text, '"starttls" with smtp_port = 587, or "tls" with 465'
    if one.smtp_user and not one.smtp_user.isprintable():
        yield "smtp_user", "it has control characters", "write the user's name"


def _words_of_others(settings: Settings) -> Iterator[Fault]:
    """Values for tailscale, apt, systemd and the network."""
    key: Key
    tailnet = settings.tailnet
    for index, tag in enumerate(tailnet.tags):
        if not _TAG.fullmatch(tag):
            key = ("tailnet", "tags", str(index))
            yield Fault(
                f"{dotted(key)} = {show(tag)}: a tag begins with tag:",
                'e.g. "tag:meshd"',
                key,
                code=FaultCode.BAD_VALUE,
            )
    for name in ("login_server", "api_base_url"):
        url = getattr(tailnet, name)
        if url and not _URL.fullmatch(url):
            key = ("tailnet", name)
            yield Fault(
                f"{dotted(key)} = {show(url)}: it is no URL",
                'e.g. "https://headscale.example.com"',
                key,
                code=FaultCode.BAD_VALUE,
            )
    yield from _packages(("node_api", "packages"), settings.node_api.packages)
    if settings.node_api.address:
        key = ("node_api", "address")
        try:
            ipaddress.ip_address(settings.node_api.address)
        except ValueError:
            text = f"{dotted(key)} = {show(settings.node_api.address)}: it is no IP address"
            yield Fault(text, "leave it out: then it is the head's tailnet address", key, code=FaultCode.BAD_VALUE)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", settings.cluster.socket_group):
        key = ("cluster", "socket_group")
        yield Fault(
            f"{dotted(key)} = {show(settings.cluster.socket_group)}: it is no group",
            'e.g. "meshd"',
            key,
            code=FaultCode.BAD_VALUE,
        )
    if not re.fullmatch(r"[A-Za-z0-9:_.\\@-]+\.service", settings.slurm.slurmctld_unit):
        key = ("slurm", "slurmctld_unit")
        text = f"{dotted(key)} = {show(settings.slurm.slurmctld_unit)}: it is no service of systemd"
        yield Fault(text, 'e.g. "slurmctld.service"', key, code=FaultCode.BAD_VALUE)


def _paths(settings: Settings) -> Iterator[Fault]:
    for table, name in (("cluster", "state_dir"), ("cluster", "socket"), ("tailnet", "socket"), ("slurm", "conf_dir"),
                        ("tailnet", "auth_key_file"), ("tailnet", "api_token_file"),
                        ("tailnet", "oauth_client_secret_file")):  # fmt: skip
        path = getattr(getattr(settings, table), name)
        key = (table, name)
        if path is not None and not path.is_absolute():
            cure = f'begin it with /, e.g. "/etc/meshd/{path.name or name}"'
            yield Fault(
                f"{dotted(key)} = {show(str(path))}: it is no absolute path", cure, key, code=FaultCode.BAD_VALUE
            )
        elif name == "socket" and len(str(path).encode()) > SOCKET_MAX_B:
            text = (
                f"{dotted(key)}: the path of a socket has at most {SOCKET_MAX_B} bytes, and this one {len(str(path))}"
            )
            yield Fault(text, "take a shorter one", key, code=FaultCode.BAD_VALUE)


def _durations(table: BaseModel, path: Key) -> Iterator[Fault]:
    """Durations of more than a year: mistakes, and some overflow a clock."""
    for name in type(table).model_fields:
        value = getattr(table, name)
        key = (*path, name)
        if isinstance(value, BaseModel):
            yield from _durations(value, key)
        elif isinstance(value, Mapping):
            for inner, one in value.items():
                if isinstance(one, BaseModel):
                    yield from _durations(one, (*key, inner))
        elif isinstance(value, (int, float)) and name.endswith(("_s", "_d")):
            most = YEAR_S if name.endswith("_s") else 3660.0
            unit = "seconds" if name.endswith("_s") else "days"
            if value > most:
                yield Fault(
                    f"{dotted(key)} = {value:g}: it is in {unit}", f"at most {most:g}", key, code=FaultCode.BAD_VALUE
                )


def _secrets(value: object, path: Key) -> Iterator[Fault]:
    """Secrets in a value, at any depth."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _secrets(one, (*path, str(name)))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _secrets(one, (*path, str(index)))
    elif isinstance(value, str) and value:
        sign = sign_of(value) or ("a secret" if path and names_secret(path[-1]) else "")
        if sign:
            text = f"{dotted(path)}: {sign} stands in a file that everybody may read"
            yield Fault(
                text,
                f"{_SECRETS_PLACE}, and make a new one: this one has been seen",
                path,
                code=FaultCode.SECRET_IN_FILE,
            )


def _unknown_gpu(name: str, pool: PoolSettings) -> Iterator[Fault]:
    if pool.gpu and not any(gpus.related(pool.gpu, model) for model in gpus.MODELS):
        key = ("pools", name, "gpu")
        cure = near(pool.gpu, gpus.MODELS) or "`meshctl offers` shows what there is"
        yield Fault(
            f"{dotted(key)} = {show(pool.gpu)}: meshd knows no GPU of this name", cure, key, code=FaultCode.UNKNOWN_GPU
        )


def _off(name: str, pool: PoolSettings, settings: Settings) -> Iterator[Fault]:
    off = [provider for provider in pool.providers if not settings.providers[provider].enabled]
    if off and len(off) == len(pool.providers):
        key = ("pools", name, "providers")
        text = f"{dotted(key)}: none of {', '.join(off)} is enabled, so nothing can be rented"
        yield Fault(text, f"set providers.{off[0]}.enabled = true, or name another", key, code=FaultCode.PROVIDERS_OFF)
    for setting in ("providers", "regions", "features"):
        twice = [word for word, count in Counter(getattr(pool, setting)).items() if count > 1]
        if twice:
            key = ("pools", name, setting)
            yield Fault(
                f"{dotted(key)} names {', '.join(twice)} twice", "once is enough", key, code=FaultCode.NAMED_TWICE
            )


def _timing(settings: Settings) -> Iterable[Fault]:
    timing = settings.timing
    if timing.join_token_ttl_s < timing.boot_timeout_s + timing.join_timeout_s:
        yield _timed(
            "join_token_ttl_s", timing.join_token_ttl_s,
            "a machine that uses its whole time to boot and to join could no longer join",
            f"at least boot_timeout_s + join_timeout_s = {timing.boot_timeout_s + timing.join_timeout_s:g}",
        )  # fmt: skip
    if timing.heartbeat_lost_s <= settings.node_api.poll_hold_s:
        yield _timed(
            "heartbeat_lost_s", timing.heartbeat_lost_s, "healthy machines would look lost between two heartbeats",
            f"well over node_api.poll_hold_s = {settings.node_api.poll_hold_s:g}",
        )  # fmt: skip
    if timing.no_capacity_cooldown_max_s < timing.no_capacity_cooldown_s:
        yield _timed(
            "no_capacity_cooldown_max_s", timing.no_capacity_cooldown_max_s, "the maximum is less than the minimum",
            f"at least no_capacity_cooldown_s = {timing.no_capacity_cooldown_s:g}",
        )  # fmt: skip
    if timing.clock_skew_max_s > 300:
        yield _timed("clock_skew_max_s", timing.clock_skew_max_s, "munge refuses clocks 300 s apart", "at most 300")
    if timing.dead_man_s <= timing.heartbeat_lost_s:
        yield _timed(
            "dead_man_s", timing.dead_man_s, "machines would power themselves off before they count as lost",
            f"well over heartbeat_lost_s = {timing.heartbeat_lost_s:g}",
        )  # fmt: skip


def _timed(name: str, value: float, why: str, cure: str) -> Fault:
    key = ("timing", name)
    return Fault(f"{dotted(key)} = {value:g}: {why}", cure, key, code=FaultCode.TIMING)
