"""PURE: oci.conf, by which `srun --container` starts a container as the job's user, without root.

Slurm ships the file to the machines. **Without it Slurm accepts --container and runs the program on the node itself**
(measured on 24.11.5). With it, and without crun on the node, the step fails with exit code 127.

Slurm 22.05 starts one task with a container on a node, and does not tell it which one of the step it is.

slurmd runs most commands as the job's user, but at a step's end it runs the query as root, and after a certain answer
also kill and delete. So each command first tests that the directory with crun's notes belongs to whoever runs it: root
believes no note of a user, and no user one of another.
"""

from __future__ import annotations

from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.init.types import OCI_CONF, FileChange, InitInput

_BEGIN = "# Written by `meshctl init`"
_HEAD = f"""\
{_BEGIN}: how `srun --container` starts containers, as the job's user, with crun (package crun).
# Slurm ships this file to the machines. Remove these two lines if you change it: meshd then leaves it alone.
"""

ENVIRONMENT_FROM = SlurmVersion((23, 2))
"""An older Slurm rejects an oci.conf with the keys that filter the environment (22.05.8: measured)."""

_ENVIRONMENT = '"^(SLURM_CONF|SLURM_CONF_SERVER)="'
"""The path of the node's own slurm.conf: commands of Slurm in a container must not look for it there."""

_PLACE = "d=/tmp/crun.$(id -u)"
_OURS = "test -O $d"
"""The directory is there, and belongs to whoever runs this. Slurm 22.05 has no pattern for the user's id."""

_CRUN = "exec /usr/bin/crun --rootless=true --cgroup-manager=disabled --root=$d"
_NAME = "%n.%u.%j.%s.%t"
"""Node, user, job, step, task."""


def render_oci(version: SlurmVersion | None) -> str:
    """The text of oci.conf.

    Args:
        version: of Slurm; None means the newest.
    """
    lines = {
        "RunTimeQuery": f"{_PLACE}; {_OURS} && {_CRUN} state {_NAME}",
        "RunTimeRun": f"{_PLACE}; mkdir -m 700 $d 2>/dev/null; {_OURS} && {_CRUN} run --bundle %b {_NAME}",
        "RunTimeKill": f"{_PLACE}; {_OURS} && {_CRUN} kill -a {_NAME}",
        "RunTimeDelete": f"{_PLACE}; {_OURS} && {_CRUN} delete --force {_NAME}",
    }
    text = _HEAD
    if version is None or version >= ENVIRONMENT_FROM:
        text += f"EnvExclude={_ENVIRONMENT}\nRunTimeEnvExclude={_ENVIRONMENT}\n"
    return text + "".join(f'{key}="{command}"\n' for key, command in lines.items())


def container_change(have: InitInput) -> list[FileChange]:
    """A new oci.conf, or meshd's own brought up to date; a file of the site's own stays."""
    new = render_oci(have.version)
    old = have.oci_conf
    if old == new or (old is not None and not old.startswith(_BEGIN)):
        return []
    reason = "`srun --container` starts containers as the job's user; without it the program would run outside of one"
    return [FileChange(have.conf_dir / OCI_CONF, old, new, (reason,))]
