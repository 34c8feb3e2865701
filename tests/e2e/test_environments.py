"""What a pool gives its nodes: variables for every job, packages, and a script that sets a machine up once."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

VALUE = """it's "big" $HOME größe"""
SHOW = "import json, os; print(json.dumps([os.environ.get(k) for k in ('HF_HOME', 'MINE', 'GLOO_SOCKET_IFNAME')]))"
PYTHON = f"python3 -c {shlex.quote(SHOW)}"
OWN = "import socket; print(socket.getaddrinfo(socket.gethostname(), 1, type=socket.SOCK_STREAM)[0][4][0])"
SETUP = """\
#!/bin/sh
echo fetching the driver
sleep 3
echo "$MESHD_NODE of $MESHD_POOL" >>/root/set-up
"""
FAILING = """\
#!/bin/sh
echo looking for the driver
echo no driver for this kernel >&2
exit 3
"""
REPOSITORY = """\
mkdir -p /root/repo/hello/DEBIAN /root/repo/hello/usr/bin
cd /root/repo
printf 'Package: meshd-hello\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@example.net>\\nDescription: x\\n' \
    >hello/DEBIAN/control
printf '#!/bin/sh\\necho hello from a package\\n' >hello/usr/bin/meshd-hello
chmod 755 hello/usr/bin/meshd-hello
dpkg-deb --root-owner-group --build hello meshd-hello_1_all.deb >/dev/null
{ dpkg-deb -f meshd-hello_1_all.deb; echo "Filename: ./meshd-hello_1_all.deb"; echo "Size: $(stat -c %s *.deb)";
  echo "SHA256: $(sha256sum *.deb | cut -d' ' -f1)"; } >Packages
chmod 755 /root
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/root/repo ./' >/etc/apt/sources.list
"""


def pool_with(lab: Lab, **keys: Any) -> str:
    """meshd.toml in which the pool has these keys besides."""
    lines = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in keys.items() if key != "env")
    env = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in keys.get("env", {}).items())
    text = lab.settings_with()
    assert text.count("[pools.h100]\n") == 1
    return f"{text.replace('[pools.h100]', f'[pools.h100]{chr(10)}{lines}', 1)}\n[pools.h100.env]\n{env}"


async def test_what_a_pool_gives_its_nodes(lab: Lab, figure: Callable[[str], None]) -> None:
    given: dict[str, Any] = {"env": {"HF_HOME": VALUE}, "packages": ["bash"], "setup": SETUP}
    assert await lab.write_settings(pool_with(lab, **given)) == 0
    await lab.want(1)
    seen: set[str] = set()

    async def ready() -> Any:
        rows = list((await lab.nodes()).values())
        seen.update(f"{one['name']} {one['state']}" for row in rows for one in row["settings"] or ())
        return rows[0] if [row["phase"] for row in rows] == ["ready"] else None

    row = await lab.until(ready, "the machine is ready")
    assert "setup working" in seen
    assert {(one["name"], one["state"]) for one in row["settings"]} >= {
        ("packages", "applied"), ("setup", "applied"), ("job_env", "applied"),
    }  # fmt: skip
    machine = row["machine"]
    assert await lab.inside(machine, "cat", "/root/set-up") == f"{row['slot']} of h100"
    assert "fetching the driver" in (await lab.meshctl("logs", machine, "--part", "setup")).text

    expected = [VALUE, None, "tailscale0"]
    assert json.loads(await lab.srun("python3", "-c", SHOW)) == expected
    own = ["env", "MINE=1", "GLOO_SOCKET_IFNAME=eth0", "srun", "--chdir=/tmp", "python3", "-c", SHOW]
    assert json.loads((await lab.head.run("runuser", "-u", "alice", "--", *own)).text) == [VALUE, "1", "eth0"]
    job = await lab.sbatch(f"{PYTHON} >/tmp/batch; srun {PYTHON} >/tmp/step")
    await lab.completed(job)
    for name in ("batch", "step"):
        assert json.loads(await lab.inside(machine, "cat", f"/tmp/{name}")) == expected

    checks = await lab.checks()
    assert checks["job environment"]["status"] == "ok"

    # A change reaches running nodes, a set-up does not run again.
    await lab.inside(machine, "sh", "-c", REPOSITORY)
    begun = time.monotonic()
    given = {"env": {"HF_HOME": "/data"}, "packages": ["bash", "meshd-hello"], "setup": f"{SETUP}# changed\n"}
    assert await lab.write_settings(pool_with(lab, **given)) == 0

    async def changed() -> bool:
        return "HF_HOME=/data\n" in await lab.inside(machine, "cat", "/etc/meshd-node/job.env") + "\n"

    await lab.until(changed, "the node has the new value")
    figure(f"a changed variable is on a running node {time.monotonic() - begun:.1f} s after the reload began")

    async def installed() -> bool:
        return "hello from a package" in await lab.inside(machine, "meshd-hello", check=False)

    await lab.until(installed, "the node has the new package")
    # As after a reboot: cloud-init has written /etc/hosts again.
    await lab.inside(machine, "sh", "-c", f"printf '127.0.1.1 {row['slot']}\\n127.0.0.1 localhost\\n' >/etc/hosts")
    await lab.inside(machine, "systemctl", "restart", "meshd-node")

    async def applied() -> bool:
        ((_, row),) = (await lab.nodes()).items()
        return all(one["state"] == "applied" for one in row["settings"] or ()) and not await lab.problems()

    await lab.until(applied, "the restarted agent has applied all again")
    assert (await lab.inside(machine, "wc", "-l", "/root/set-up")).startswith("1 ")
    assert await lab.srun("python3", "-c", OWN) == row["address"]


async def test_a_machine_whose_set_up_fails_is_given_back_with_its_words(lab: Lab) -> None:
    after = await lab.last_event()
    assert await lab.write_settings(pool_with(lab, setup=FAILING)) == 0
    await lab.want(1)

    async def failed() -> Any:
        found = [event for event in await lab.events(after) if event["kind"] == "failure"]
        return found[0] if found else None

    event = await lab.until(failed, "the machine is given up")
    assert event["fields"]["cause"] == "settings"
    assert "exit code 3" in event["text"]
    assert "no driver for this kernel" in event["text"]

    async def cools_down() -> bool:
        return not await lab.nodes() and not lab.all_alive()

    await lab.until(cools_down, "it is gone, and no other is rented in its place")
    logs = (await lab.meshctl("logs", event["machine"], "--part", "setup")).text
    assert logs.count("looking for the driver\nno driver for this kernel") == 3
    assert "no driver" in (await lab.meshctl("explain", event["machine"])).text

    assert await lab.write_settings(pool_with(lab, setup="/etc/meshd/no-such-script")) == 0
    assert "settings_doubtful" in await lab.problem_codes()
    await lab.head.write("/etc/meshd/setup.sh", "#!/bin/sh\ntouch /root/from-a-file\n", "0644")
    assert await lab.write_settings(pool_with(lab, setup="/etc/meshd/setup.sh")) == 0
    await lab.have(1)
    (row,) = (await lab.nodes()).values()
    await lab.inside(row["machine"], "test", "-e", "/root/from-a-file")


async def test_a_pod_is_set_up_too_and_its_jobs_have_the_variables(booted: Lab) -> None:
    async with booted.enabled("runpod", "aws") as lab:
        await lab.begin("a pod is set up")
        given: dict[str, Any] = {"env": {"HF_HOME": VALUE}, "packages": ["bash"], "setup": SETUP}
        assert await lab.write_settings(pool_with(lab, **given)) == 0
        await lab.want(1, "--provider", "runpod")
        (row,) = (await lab.ready(1)).values()
        assert row["pod"]
        assert await lab.inside(row["machine"], "cat", "/root/set-up") == f"{row['slot']} of h100"
        assert json.loads(await lab.srun("python3", "-c", SHOW)) == [VALUE, None, "tailscale0"]
        shown = await lab.srun("python3", "-c", "import socket; print(*(name for _, name in socket.if_nameindex()))")
        assert "tailscale0" in shown.split(), "the interface that the variables name is there, as libmeshnet shows it"
