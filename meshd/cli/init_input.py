"""Reads the head's files and names for `meshctl init`: the input of its pure planner."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import PurePosixPath

from meshd.api.schema import NodesView
from meshd.bootstrap.assets import head_programs, task_prolog
from meshd.cli.errors import CliError
from meshd.config import Settings
from meshd.errors import SlurmError
from meshd.model.ids import slot_index
from meshd.plan.node_settings import BUILT_IN_ENV, MLFLOW_URI
from meshd.plan.slurm_lines import PLACEHOLDERS
from meshd.runtime.rootfs import Kind, RootFs
from meshd.runtime.run import run
from meshd.slurm.capabilities import SlurmVersion, parse_version
from meshd.slurm.conf import parse
from meshd.slurm.init import compute_setup, probe
from meshd.slurm.init.accounting import PORT
from meshd.slurm.init.accounting_setup import look
from meshd.slurm.init.amend import read_number
from meshd.slurm.init.codes import InitRefused, Refusal
from meshd.slurm.init.compute import declared
from meshd.slurm.init.power_saving import OWN_PROLOG
from meshd.slurm.init.task_prolog import TASK_PROLOG
from meshd.slurm.init.tree import Tree, read_tree
from meshd.slurm.init.types import (
    CGROUP_CONF,
    DAEMON_USER,
    GRES_CONF,
    JOB_ENV,
    OCI_CONF,
    PLUGSTACK_CONF,
    SLURM_CONF,
    SLURM_DIR,
    AccountingState,
    HeadCompute,
    InitInput,
)
from meshd.slurm.nodes import GRES, NODES
from meshd.slurm.pools import pool_lines
from meshd.slurm.read_back import read_node_addrs
from meshd.tailnet.cli import TailscaleCli

ROOT_USER = "root"
"""Slurm's own default of SlurmUser."""

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def head_address(settings: Settings, given: str | None, fs: RootFs) -> str:
    """The head's tailnet IPv4 address: the one given, else tailscaled's.

    Raises:
        TailnetError: tailscaled does not run, or is not logged in.
        InitRefused: machines cannot reach such an address, or none is given for another machine's image.
    """
    if given is None:
        if not fs.is_host:
            raise InitRefused(
                Refusal.ADDRESS_NEEDED,
                f"{fs.root} belongs to another machine: this machine's tailscaled does not know its address",
                "name it with --head-address 100.x.y.z",
            )
        return asyncio.run(TailscaleCli(run, settings.tailnet.socket).ip4())
    try:
        address = IPv4Address(given)
    except ValueError:
        raise _bad_address(given, "is not an IPv4 address") from None
    if address.is_unspecified or address.is_loopback or address.is_multicast or address in PLACEHOLDERS:
        raise _bad_address(given, "is not an address that machines can reach")
    return str(address)


def _bad_address(given: str, why: str) -> InitRefused:
    return InitRefused(Refusal.BAD_ADDRESS, f"--head-address {given!r} {why}", "run `tailscale ip -4` on the head")


def read_input(
    settings: Settings,
    address: str,
    fs: RootFs,
    ask_nodes: Callable[[], NodesView] | None = None,
    *,
    accounting: bool = False,
    compute: bool | None = None,
) -> InitInput:
    """The input of the plan.

    Args:
        settings: meshd's.
        address: the head's tailnet IPv4 address.
        fs: the file system to prepare.
        ask_nodes: asks the meshd that runs for its machines, and raises CliError where none answers; None: do not ask.
        accounting: look at slurmdbd and MariaDB too.
        compute: whether the head is to be a node; None: as the settings say.

    Raises:
        InitRefused: a path is not a file, a link leads nowhere, or the host has no usable name.
        SlurmError: a file cannot be read.
    """
    conf_dir = PurePosixPath(os.path.normpath(settings.slurm.conf_dir))
    former_dir = PurePosixPath(os.path.normpath(settings.cluster.state_dir)) / "slurm"
    for path in (conf_dir, former_dir):
        if not path.is_absolute():
            raise InitRefused(Refusal.BAD_NAME, f"{path} is not an absolute path", "write it from / in meshd.toml")
    try:
        links, present = _names(fs, conf_dir)
        load = _loader(fs, {conf_dir / name for name, target in links.items() if _ours(target, former_dir)})
        known = _version(fs)
        tree = read_tree(conf_dir / SLURM_CONF, load, known)
        gres = read_tree(conf_dir / GRES_CONF, load, known)
        texts = {str(path): conf.render() for path, conf in {**tree.files, **gres.files}.items()}
        cgroup = load(conf_dir / CGROUP_CONF)
        oci = load(conf_dir / OCI_CONF)
        stack = conf_dir / PLUGSTACK_CONF
        plugstack = fs.read_text(stack) if fs.kind(stack) is Kind.FILE else ""
        head_task_prolog = load(TASK_PROLOG)
        programs = head_programs()
        on_head = {path: text for path in programs if (text := load(path)) is not None}
        own_prolog = load(OWN_PROLOG)
        services = _accounting(fs, conf_dir, tree, settings) if accounting else None
        head_job_env = load(JOB_ENV)
        own_files = all(fs.kind(SLURM_DIR / name) is Kind.FILE for name in (NODES, GRES))
    except OSError as error:
        raise SlurmError(f"{error.filename or conf_dir} cannot be read: {error.strerror}") from error
    slurm_conf = texts.pop(str(conf_dir / SLURM_CONF), None)
    head = _head_name(fs, slurm_conf)
    return InitInput(
        cluster=settings.cluster.name,
        head=head,
        head_address=address,
        slurm_conf=slurm_conf,
        gres_conf=texts.pop(str(conf_dir / GRES_CONF), None),
        cgroup_conf=cgroup,
        oci_conf=oci,
        included=texts,
        links=links,
        present=present,
        plugstack=plugstack,
        pools=pool_lines(settings.pools),
        slurm_user=slurm_user(tree, slurm_conf, fs),
        conf_dir=conf_dir,
        former_dir=former_dir,
        version=known,
        slurmctld_port=settings.slurm.slurmctld_port,
        running=_running(tree, address, settings) if fs.is_host and slurm_conf and not tree.missing else {},
        own_files=own_files,
        task_prolog=task_prolog(),
        head_task_prolog=head_task_prolog,
        without_task_prolog=without_task_prolog(tree, settings, ask_nodes),
        accounting=services,
        power_programs=programs,
        head_power_programs=on_head,
        own_prolog=own_prolog,
        compute=_compute(settings, compute, fs, slurm_conf or "", head, address),
        head_job_env=head_job_env,
    )


def _compute(
    settings: Settings, asked: bool | None, fs: RootFs, slurm_conf: str, head: str, address: str
) -> HeadCompute | None:
    """The head as a node, where the command or the settings say so, or it is one already."""
    wanted, there = settings.head, declared(parse(slurm_conf))
    on = next((one for one in (asked, wanted.compute) if one is not None), there)
    if not (on or there):
        return None
    if not fs.is_host:
        if asked is None:
            return None
        raise InitRefused(
            Refusal.COMPUTE_NEEDS_HOST,
            f"{fs.root} belongs to another machine: its hardware cannot be measured here",
            "boot it, and run `meshctl init --compute` there",
        )
    return asyncio.run(_look_at_head(settings, head, address, on=on, there=there))


async def _look_at_head(settings: Settings, head: str, address: str, *, on: bool, there: bool) -> HeadCompute:
    wanted, env = settings.head, dict(BUILT_IN_ENV)
    if settings.mlflow.enabled:
        env[MLFLOW_URI] = settings.mlflow.uri(address)
    jobs = await compute_setup.jobs_on(run, head) if there else ()
    enabled, active = [await compute_setup.is_on(run, verb) for verb in ("is-enabled", "is-active")]
    found = await compute_setup.facts(run) if on else None
    return HeadCompute(
        on=on, partition=wanted.partition, default=wanted.default, gpus=wanted.gpus,
        core_spec_count=wanted.core_spec_count, mem_spec_limit_mib=wanted.mem_spec_limit_mib,
        memory_fraction=settings.slurm.memory_fraction,
        shape=compute_setup.shape_of(found) if found else None, found=compute_setup.gpus_of(found) if found else (),
        gpu_fault=found["gpu_fault"] if found else "",
        job_env="".join(f"{name}={value}\n" for name, value in env.items()),
        enabled=enabled, active=active, jobs=jobs,
    )  # fmt: skip


def without_task_prolog(tree: Tree, settings: Settings, ask_nodes: Callable[[], NodesView] | None) -> tuple[str, ...]:
    """The nodes of meshd that may not have the task prolog: their agents are older, or nobody can say.

    Args:
        tree: all files: their lines say which slots have a machine.
        settings: meshd's, for the names of slots.
        ask_nodes: see `read_input`.
    """
    text = "".join(conf.render() for conf in tree.files.values())
    names = sorted(read_node_addrs(text))
    joined = tuple(name for name in names if any(slot_index(pool, name) is not None for pool in settings.pools))
    if not joined or ask_nodes is None:
        return joined
    try:
        rows = ask_nodes().nodes
    except CliError:
        return joined
    have = {row.slot for row in rows for one in row.settings or () if (one.name, one.state) == ("job_env", "applied")}
    return tuple(slot for slot in joined if slot not in have)


def _accounting(fs: RootFs, conf_dir: PurePosixPath, tree: Tree, settings: Settings) -> AccountingState:
    if not fs.is_host:
        raise InitRefused(
            Refusal.ACCOUNTING_NEEDS_HOST,
            f"{fs.root} belongs to another machine: its slurmdbd and MariaDB cannot be started here",
            "boot it, and run `meshctl init --accounting` there",
        )
    cluster = tree.get("ClusterName") or settings.cluster.name
    return asyncio.run(look(fs, run, conf_dir, cluster, read_number(tree.get("AccountingStoragePort") or "") or PORT))


def slurm_user(tree: Tree, slurm_conf: str | None, fs: RootFs) -> str:
    """SlurmUser's name as Slurm reads it: root if not set; a number is a user's id. A new file gets Debian's user.

    Raises:
        InitRefused: there is no such user.
    """
    new = slurm_conf is None or not slurm_conf.strip()
    user = DAEMON_USER if new else tree.get("SlurmUser") or ROOT_USER
    try:
        return fs.user_name(user)
    except OSError:
        return user  # the image has no users yet
    except KeyError:
        raise InitRefused(
            Refusal.NO_USER,
            f"SlurmUser is {user}, but there is no such user",
            "apt-get install slurmctld" if new else "correct SlurmUser= in slurm.conf: slurmctld cannot start",
        ) from None


def _running(tree: Tree, address: str, settings: Settings) -> dict[str, str]:
    """The settings of the slurmctld that runs, if one answers."""
    first = (tree.get("SlurmctldPort") or "").partition("-")[0]
    port = int(first) if first.isdigit() and 0 < int(first) < 65536 else settings.slurm.slurmctld_port
    return asyncio.run(probe.running(run, address, port))


def _ours(target: str, former_dir: PurePosixPath) -> bool:
    return PurePosixPath(target) in (SLURM_DIR / NODES, SLURM_DIR / GRES, former_dir / NODES, former_dir / GRES)


def _names(fs: RootFs, conf_dir: PurePosixPath) -> tuple[dict[str, str], frozenset[str]]:
    """The links in Slurm's directory with their targets, and the names of its other entries."""
    kind = fs.kind(conf_dir)
    if kind is Kind.MISSING:
        return {}, frozenset()
    if kind is not Kind.DIRECTORY:
        raise _unusable(conf_dir, kind, "a directory")
    links: dict[str, str] = {}
    present: set[str] = set()
    for name in sorted(path.name for path in fs.locate(conf_dir).iterdir()):
        if fs.is_link(conf_dir / name):
            links[name] = str(fs.link_target(conf_dir / name))
        else:
            present.add(name)
    return links, frozenset(present)


def _loader(fs: RootFs, own: set[PurePosixPath]) -> Callable[[PurePosixPath], str | None]:
    """A function that reads a file, or gives None if it does not exist. A link in `own` may lead to a missing file."""

    def load(path: PurePosixPath) -> str | None:
        kind = fs.kind(path)
        if kind is Kind.FILE:
            return fs.read_text(path)
        if kind is Kind.MISSING or (kind is Kind.DANGLING and path in own):
            return None
        raise _unusable(path, kind, "a file")

    return load


def _unusable(path: PurePosixPath, kind: Kind, wanted: str) -> InitRefused:
    if kind is Kind.DANGLING:
        return InitRefused(
            Refusal.LINK_DANGLES, f"{path} is a link to a file that does not exist", f"make that file, or rm {path}"
        )
    if kind is Kind.LOOP:
        return InitRefused(Refusal.LINK_LOOP, f"{path} is a link to itself", f"rm {path}")
    return InitRefused(Refusal.NOT_A_FILE, f"{path} is not {wanted}", f"mv {path} {path}.old, and put {wanted} there")


def _head_name(fs: RootFs, slurm_conf: str | None) -> str:
    name = fs.short_host_name()
    if _HOST_NAME.fullmatch(name) or (not name and slurm_conf):
        return name
    raise InitRefused(
        Refusal.HEAD_NAME_NEEDED,
        f"slurm.conf cannot hold the head's host name {name!r}",
        f"echo NAME > {fs.root / 'etc/hostname'}" if not fs.is_host else "hostnamectl set-hostname NAME",
    )


def _version(fs: RootFs) -> SlurmVersion | None:
    """Slurm's version: from its command on this machine, from dpkg's status in an image."""
    if fs.is_host:
        return asyncio.run(probe.version(run))
    status = PurePosixPath("/var/lib/dpkg/status")
    if fs.kind(status) is not Kind.FILE:
        return None
    for paragraph in fs.read_text(status).split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in paragraph.splitlines() if not line.startswith(" "))
        if fields.get("Package") in ("slurmctld", "slurm-client") and "Version" in fields:
            return parse_version(fields["Version"].partition("-")[0])
    return None
