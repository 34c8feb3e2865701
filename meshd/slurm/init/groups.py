"""PURE: whose groups a job has: those of its node, where all nodes are meshd's."""

from __future__ import annotations

from pathlib import PurePosixPath

from meshd.slurm.init.amend import Editor
from meshd.slurm.init.names import own_nodes

KEY = "LaunchParameters"
ITEM = "disable_send_gids"
NSS = "enable_nss_slurm"


def amend_groups(editor: Editor, own: PurePosixPath) -> None:
    """Have nodes look a user's groups up themselves: meshd's have those of the head that are no system's.

    Otherwise Slurm sends the numbers of all groups that the user has on the head. One of the system's may have the
    number of a node's `docker`, and whoever has that is root there. Other nodes may lack the groups, and nss_slurm
    needs what Slurm sends: then it stays as it is.

    Args:
        editor: edits slurm.conf.
        own: meshd's nodes.conf, whose nodes are not the user's.
    """
    items = [item.lower() for item in editor.tree.list_of(KEY)]
    others = [name for name, host in own_nodes(editor.tree, own) if editor.have.head not in (name, host)]
    if NSS not in items and not others:
        editor.add_item(KEY, ITEM, "jobs have the groups of their node, not the numbers of the head's")
