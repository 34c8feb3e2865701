"""What a cloud's create call gave a machine to run, as a person would read it."""

from __future__ import annotations

import base64
import re
import shlex

from deploy.sandbox.clouds.ledger import RentedMachine

_SCRIPT = re.compile(r"echo ([A-Za-z0-9+/=]*) \| base64 -d")


def script_of(machine: RentedMachine) -> str:
    """The script: the user data, or what the arguments of a pod have in base64; "" when there is none."""
    if machine.pod is None:
        return machine.user_data
    found = next((match for word in shlex.split(machine.pod.args) if (match := _SCRIPT.search(word))), None)
    return base64.b64decode(found[1], validate=True).decode() if found else ""
