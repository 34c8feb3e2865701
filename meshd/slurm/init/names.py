"""PURE: checks that the names of meshd's files, slots and partitions are free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from meshd.errors import SlurmError
from meshd.slurm.init.amend import Editor
from meshd.slurm.init.codes import InitRefused, Refusal, Warn
from meshd.slurm.init.tree import Placed, Tree
from meshd.slurm.init.types import GRES_INCLUDES, NODES_INCLUDES, InitInput
from meshd.slurm.nodes import GRES, NODES
from meshd.slurm.show import hostlist


def own_names(have: InitInput) -> tuple[str, str]:
    """The names of meshd's nodes.conf and gres.conf in Slurm's directory.

    Raises:
        InitRefused: other files have all possible names.
    """
    return _free(have, NODES_INCLUDES, NODES), _free(have, GRES_INCLUDES, GRES)


def _free(have: InitInput, names: Sequence[str], file: str) -> str:
    ours = {str(have.slurm_dir / file), str(have.former_dir / file)}
    for name in names:
        if have.links.get(name) in ours:
            return name
    for name in names:
        if name not in have.links and name not in have.present and have.conf_dir / name not in have.texts():
            return name
    last = have.conf_dir / names[-1]
    raise InitRefused(
        Refusal.FILE_NAME_TAKEN,
        f"{', '.join(str(have.conf_dir / name) for name in names)}: none of these is meshd's, and no name is left",
        f"mv {last} {last}.old (where slurm.conf includes it, name it there by its new name)",
    )


def check_names(tree: Tree, have: InitInput, own: PurePosixPath) -> int:
    """Refuse names that the user's files declare already: slurmctld does not start with a name that occurs twice.

    Args:
        tree: all files, with meshd's own.
        have: the present state.
        own: meshd's nodes.conf: its lines are not the user's.

    Returns:
        The number of nodes that the user declares.

    Raises:
        InitRefused: the user declares a slot's or a pool's partition's name, or a host list cannot be read.
    """
    taken: dict[str, str] = {}
    for record in tree.records("NodeName"):
        if record.at.file != own:
            taken.update((name, record.at.where) for name in _hosts(record.name, record.at.where))
    sets = {r.name: r.at.where for r in tree.records("NodeSet") if r.at.file != own}
    partitions = {r.name: r.at.where for r in tree.records("PartitionName") if r.at.file != own}
    for pool in have.pools:
        for slot in (f"{pool.name}-{index}" for index in range(1, pool.max_nodes + 1)):
            if slot in taken:
                raise InitRefused(
                    Refusal.NODE_NAME_TAKEN,
                    f"pool {pool.name} would declare the node {slot}, which {taken[slot]} has",
                    f"give [pools.{pool.name}] another name in /etc/meshd/meshd.toml",
                )
            if slot in sets:
                raise InitRefused(
                    Refusal.NODESET_NAME_TAKEN,
                    f"pool {pool.name} would declare the node {slot}, which is a NodeSet in {sets[slot]}",
                    f"give [pools.{pool.name}] another name in /etc/meshd/meshd.toml",
                )
        partition = pool.partition or pool.name
        if partition in partitions:
            raise InitRefused(
                Refusal.PARTITION_NAME_TAKEN,
                f"pool {pool.name} would declare the partition {partition}, which {partitions[partition]} has",
                f'set partition = "NAME" in [pools.{pool.name}] of /etc/meshd/meshd.toml, with a name that is free',
            )
    return len(taken)


def own_nodes(tree: Tree, own: PurePosixPath) -> tuple[tuple[str, str], ...]:
    """The nodes that the user declares, each as (name, host name).

    Raises:
        InitRefused: a host list cannot be read.
    """
    found: list[tuple[str, str]] = []
    for record in tree.records("NodeName"):
        if record.at.file != own:
            names = _hosts(record.name, record.at.where)
            hosts = record.fields.get("nodehostname") or record.name
            found += zip(names, _hosts(hosts, record.at.where), strict=False)
    return tuple(found)


def _hosts(names: str, where: str) -> tuple[str, ...]:
    try:
        return hostlist(names)
    except SlurmError as error:
        raise InitRefused(
            Refusal.HOSTLIST, f"{where}: NodeName={names} cannot be read: {error}", "write the names one by one there"
        ) from error


def _with_nodes(placed: Placed, names: Sequence[str]) -> str:
    """The line, with its Nodes= set to these names."""
    for pair in placed.line.pairs:
        if pair.key.lower() == "nodes":
            raw = placed.line.raw
            return (raw[: pair.start] + ",".join(names) + raw[pair.end :]).strip()
    return f"{placed.line.raw.strip()} Nodes={','.join(names)}"


def warn_partitions(editor: Editor, own: PurePosixPath) -> None:
    """Warn about the user's partitions that include meshd's slots, and about a second default partition."""
    tree = editor.tree
    mine = [r.name for r in tree.records("NodeName") if r.at.file != own]
    defaults = []
    for record in tree.records("PartitionName"):
        if record.at.file == own:
            continue
        if record.fields.get("default", "").upper() == "YES":
            defaults.append(record)
        if record.fields.get("nodes", "").upper() == "ALL":
            cure = f"write {_with_nodes(record.at, mine)!r}" if mine else "remove it, unless that is meant"
            jobs = "jobs that name no partition" if record in defaults else "jobs in it"
            editor.warn(
                Warn.ALL_NODES,
                f"{record.at.where}: PartitionName={record.name} has Nodes=ALL, rented machines too: {jobs} would "
                f"run on them; {cure}",
            )
    pools = [pool.name for pool in editor.have.pools if pool.default]
    if pools and defaults:
        editor.warn(
            Warn.TWO_DEFAULTS,
            f"pool {pools[0]} is default, and so is PartitionName={defaults[-1].name} ({defaults[-1].at.where}): Slurm "
            f"takes the last one it reads; write Default=NO there, or drop default = true from [pools.{pools[0]}]",
        )
