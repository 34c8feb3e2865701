"""The start command that carries stage 1 into a container. PURE.

RunPod has no user data: `args` is a string that is split like a shell's words and handed to the image's entrypoint, in
place of the image's own command. Base64 needs no quoting.
"""

from __future__ import annotations

import base64

SCRIPT = "/meshd-stage1"
IMAGE_START = "/start.sh"


def start_command(user_data: str, *, image_start: bool) -> str:
    """The `args` of a pod that run `user_data` once and then keep the container up.

    The shell becomes `sleep` in the end, so that the script, with what is secret in it, does not stay visible in the
    list of processes.

    Args:
        user_data: a POSIX shell script.
        image_start: run the image's own start script as well, beside it.
    """
    script = base64.b64encode(user_data.encode()).decode("ascii")
    steps = ["umask 077", f"echo {script} | base64 -d >{SCRIPT}"]
    if image_start:
        steps.append(f"[ ! -x {IMAGE_START} ] || (umask 022; exec {IMAGE_START}) >/var/log/start.log 2>&1 & true")
    steps += [f"sh {SCRIPT}", f"rm -f {SCRIPT}", "exec sleep infinity"]
    return f"bash -c '{'; '.join(steps)}'"
