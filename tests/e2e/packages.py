"""apt on the head of a sandbox, and what it leaves of units."""

from __future__ import annotations

from deploy.sandbox.headmachine import Head

APT = ("apt-get", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "APT::Sandbox::User=root", "--no-install-recommends")
APT_TIMEOUT_S = 240


async def apt(head: Head, *words: str, check: bool = True, env: str = "") -> str:
    """What apt-get prints. With `check` it ends well, without it fails; `env` is a variable and its value."""
    done = await head.run(*(["env", env] if env else []), *APT, *words, timeout_s=APT_TIMEOUT_S, check=False)
    told = f"{done.text}\n{done.stderr.decode(errors='replace')}"
    assert (done.returncode == 0) == check, told
    return told


async def unit(head: Head, name: str) -> tuple[str, str, str]:
    """Where a unit's file is, whether it is enabled, and whether it runs, as systemd says."""
    shown = await head.run("systemctl", "show", "-p", "FragmentPath,UnitFileState,ActiveState", name)
    found = dict(line.split("=", 1) for line in shown.text.splitlines())
    return found["FragmentPath"], found["UnitFileState"], found["ActiveState"]
