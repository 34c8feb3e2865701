"""Stage 1: right shell, small, no secret on a command line; and the agent's package."""

from __future__ import annotations

import ast
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from meshd.bootstrap import assets
from meshd.bootstrap.stage1 import SIZE_MAX_B, Stage1, render
from tests.unit.node.stage1_alone import STAGE, alone


def text(stage: Stage1 = STAGE, *, systemd: bool = True) -> str:
    return render(stage, assets.stage1_template(systemd=systemd))


@pytest.mark.parametrize("systemd", [True, False])
@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "busybox"])
def test_every_shell_parses_it(shell: str, systemd: bool, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    script = tmp_path / "stage1.sh"
    script.write_text(text(systemd=systemd))
    argv = [shell, *(["sh"] if shell == "busybox" else []), "-n", str(script)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("systemd", [True, False])
def test_small_deterministic_and_complete(systemd: bool) -> None:
    one = text(systemd=systemd)
    assert one == text(systemd=systemd)
    assert one.startswith("#!/bin/sh\n")
    assert not re.search(r"@[A-Z_]+@", one)
    assert "#: " not in one, "all marks are gone"
    python = one.split("<<'PY'\n")[1].split("\nPY\n")[0]
    assert "for head in c" in ast.unparse(ast.parse(python)), "what is left of its indents is right"
    assert ("set_tunnel" in python) is not systemd
    long = replace(STAGE, machine="m" * 63, auth_key=SecretStr("k" * 120), login_server="https://" + "l" * 100)
    assert len(text(long, systemd=systemd).encode()) <= SIZE_MAX_B


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
@pytest.mark.parametrize("systemd", [True, False])
def test_shellcheck_finds_nothing(systemd: bool, tmp_path: Path) -> None:
    script = tmp_path / "stage1.sh"
    script.write_text(text(systemd=systemd))
    argv = ["shellcheck", "-S", "warning", "-e", "SC2157", str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_secrets_appear_only_as_operands_of_the_shells_own_printf() -> None:
    for secret, systemd in itertools.product(("tskey-auth", "J" * 64), (True, False)):
        lines = [line for line in text(systemd=systemd).splitlines() if secret in line]
        assert len(lines) == 1
        assert re.search(r"(^|\|\| |\s)printf '%s\\n' ", lines[0]), lines[0]
        assert ">" in lines[0]
    assert "munge.key" not in text()
    assert "SECRET" not in repr(STAGE)
    assert "JJJJ" not in repr(STAGE)


def harmless(root: Path) -> Path:
    """Stage 1 below a root, with everything that acts replaced; calls of tailscale are in `calls`."""
    state = root / "var/lib/tailscale/tailscaled.state"
    state.parent.mkdir(parents=True, exist_ok=True)
    script = root / "s.sh"
    harness = f"""
tailscale_ok() {{ :; }}
start_tailscaled() {{ [ -e {state} ] || echo own >{state}; }}
stop_image() {{ echo stop >>{root}/calls; }}
systemctl() {{ echo "systemctl $*" >>{root}/calls; }}
right_kind() {{ :; }}
status() {{ cat {root}/status; }}
tailscale() {{ echo "$*" >> {root}/calls; cat {root}/online > {root}/status; }}
fetch_agent() {{ :; }}
main
"""
    script.write_text(alone(STAGE, root, harness))
    return script


def test_state_of_another_machine_in_the_image_is_wiped_at_the_first_boot_only(tmp_path: Path) -> None:
    for path, words in (
        ("var/lib/tailscale/tailscaled.state", "another's"),
        ("var/lib/meshd-node/state.json", '{"node_token": "another\'s"}'),
        ("var/lib/meshd-node/machine", "mesh-h100-9-zzzzzz"),
        ("etc/meshd-node/tailscale.key", "another's"),
        ("opt/meshd-node/meshd-node.pyz", "agent"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(words)
    (tmp_path / "status").write_text('  "BackendState": "NeedsLogin",\n')
    (tmp_path / "online").write_text('  "BackendState": "Running",\n "HaveNodeKey": true,\n "Online": true\n')
    script = harmless(tmp_path)

    def boot() -> str:
        return subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60, check=True).stdout

    assert "another machine's state" in boot()
    assert (tmp_path / "calls").read_text().splitlines()[0] == "stop"
    assert (tmp_path / "var/lib/tailscale/tailscaled.state").read_text() == "own\n"
    assert not (tmp_path / "var/lib/meshd-node/state.json").exists()
    assert (tmp_path / "var/lib/meshd-node/machine").read_text().strip() == STAGE.machine
    assert (tmp_path / "etc/meshd-node/tailscale.key").read_text().strip() == STAGE.auth_key.get_secret_value()
    (tmp_path / "var/lib/meshd-node/state.json").write_text('{"node_token": "own"}')
    for _ in range(2):
        assert "wiping" not in boot()
    assert (tmp_path / "var/lib/tailscale/tailscaled.state").read_text() == "own\n"
    assert "own" in (tmp_path / "var/lib/meshd-node/state.json").read_text()
    assert (tmp_path / "calls").read_text().count("stop") == 1


def test_an_image_without_state_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "status").write_text('  "BackendState": "NeedsLogin",\n')
    (tmp_path / "online").write_text('  "BackendState": "Running",\n "HaveNodeKey": true,\n "Online": true\n')
    done = subprocess.run(["sh", str(harmless(tmp_path))], capture_output=True, text=True, timeout=60, check=True)
    assert "wiping" not in done.stdout
    assert "stop" not in (tmp_path / "calls").read_text()


def test_the_scripts_own_file_is_roots_alone_and_a_node_without_state_is_one_still(tmp_path: Path) -> None:
    (tmp_path / "status").write_text('  "BackendState": "NeedsLogin",\n')
    (tmp_path / "online").write_text('  "BackendState": "Running",\n "HaveNodeKey": true,\n "Online": true\n')
    script = harmless(tmp_path)
    script.chmod(0o755)
    subprocess.run(["sh", str(script)], capture_output=True, timeout=60, check=True)
    assert script.stat().st_mode & 0o777 == 0o700
    join, agent = tmp_path / "etc/meshd-node/join.json", tmp_path / "opt/meshd-node/meshd-node.pyz"
    join.write_text("{}")
    agent.parent.mkdir(parents=True, exist_ok=True)
    agent.write_text("#")
    (join.parent / "node.token").write_text("own")
    subprocess.run(["sh", str(script)], capture_output=True, timeout=60, check=True)
    assert join.read_text() == "{}", "its join token is not laid out again"
    assert "systemctl --no-block start meshd-node" in (tmp_path / "calls").read_text()


def test_values_are_quoted_for_the_shell(tmp_path: Path) -> None:
    """Run the assignments and writes in a real shell, with everything that acts replaced."""
    calls = tmp_path / "calls"
    (tmp_path / "status").write_text('  "BackendState": "NeedsLogin",\n')
    (tmp_path / "online").write_text('  "BackendState": "Running",\n "HaveNodeKey": true,\n "Online": true\n')
    script = harmless(tmp_path)
    done = subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "etc/meshd-node/tailscale.key").read_text().strip() == STAGE.auth_key.get_secret_value()
    assert (tmp_path / "etc/meshd-node/tailscale.key").stat().st_mode & 0o777 == 0o600
    join = json.loads((tmp_path / "etc/meshd-node/join.json").read_text())
    assert join["token"] == STAGE.join_token.get_secret_value()
    assert join["heads"] == list(STAGE.heads)
    assert (tmp_path / "etc/meshd-node/join.json").stat().st_mode & 0o777 == 0o600
    assert calls.read_text() == (
        f"up --auth-key=file:{tmp_path}/etc/meshd-node/tailscale.key --hostname=mesh-h100-1-k7q2mz --accept-dns=false "
        "--timeout=30s --login-server=http://10.77.0.1:8080\n"
    )
    assert "quote" not in done.stdout + done.stderr
    again = subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 0
    assert len(calls.read_text().splitlines()) == 1, "a node that is online is not logged in again"


@pytest.mark.parametrize("systemd", [True, False])
@pytest.mark.parametrize("is_node", [True, False])
def test_a_node_that_the_tailnet_refuses_still_gets_its_agent(is_node: bool, systemd: bool, tmp_path: Path) -> None:
    """The agent looks after the login, and its dead-man switch runs; any other machine gives up, and says why."""
    refused = '"BackendState": "Running",\n "HaveNodeKey": true,\n "Health": ["login error: invalid key"]\n'
    (tmp_path / "status").write_text(refused)
    if is_node:
        for path in ("var/lib/meshd-node/state.json", "opt/meshd-node/meshd-node.pyz"):
            (tmp_path / path).parent.mkdir(parents=True)
            (tmp_path / path).write_text("{}")
        (tmp_path / "var/lib/meshd-node/machine").write_text(f"{STAGE.machine}\n")
    harness = f"""
tailscale_ok() {{ :; }}
start_tailscaled() {{ :; }}
fetch_agent() {{ :; }}
right_kind() {{ :; }}
sleep() {{ :; }}
status() {{ cat {tmp_path}/status; }}
tailscale() {{ echo "$*" >> {tmp_path}/calls; }}
systemctl() {{ echo "systemctl $*" >> {tmp_path}/started; }}
s6-svc() {{ echo "s6-svc $*" >> {tmp_path}/started; }}
main
"""
    script = tmp_path / "s.sh"
    script.write_text(alone(STAGE, tmp_path, harness, systemd=systemd))
    # dash takes no function of the name s6-svc
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "is the auth key expired, revoked or used up?" in done.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[:2] for call in calls] == [["up", "--auth-key=file:/dev/null"]] * 2, "no key"
    started = tmp_path / "started"
    start = "systemctl --no-block start meshd-node\n"
    if not systemd:
        start = f"s6-svc -u {tmp_path}/run/meshd-pod/service/meshd-node\n"
    assert (started.read_text() if started.exists() else "") == (start if is_node else "")


def fetching(root: Path, *codes: int, hours: bool = False) -> subprocess.CompletedProcess[str]:
    """Stage 1 on the tailnet, whose fetches of the agent end with these codes, and well after that.

    Args:
        root: stands for /.
        codes: of each fetch.
        hours: an hour passes between two looks at the clock, not a second.
    """
    (root / "codes").write_text("".join(f"{code}\n" for code in codes))
    harness = f"""
tailscale_ok() {{ :; }}
right_kind() {{ :; }}
start_tailscaled() {{ :; }}
join_tailnet() {{ :; }}
sleep() {{ :; }}
systemctl() {{ echo "systemctl $*"; }}
up_s() {{ echo x >>{root}/looks; echo $(($(wc -l <{root}/looks) * {3600 if hours else 1})); }}
fetch_agent() {{
  code=$(head -n 1 {root}/codes); sed -i 1d {root}/codes
  echo "100.64.0.1: refused"
  exit "${{code:-0}}"
}}
main
"""
    script = root / "s.sh"
    script.write_text(alone(replace(STAGE, power_off=True), root, harness))
    return subprocess.run(["sh", str(script)], capture_output=True, text=True, timeout=60, check=False)


def test_a_head_that_is_away_for_a_while_ends_no_machine(tmp_path: Path) -> None:
    """It was ended after 28 s, and another one was rented for each, while meshd was only being restarted."""
    done = fetching(tmp_path, *[1] * 40)
    assert done.returncode == 0, done.stdout
    assert "try 40): 100.64.0.1: refused" in done.stdout
    assert done.stdout.endswith("the node agent is started\n")


def test_a_head_that_stays_away_for_as_long_as_the_dead_man_waits_ends_it(tmp_path: Path) -> None:
    done = fetching(tmp_path, *[1] * 40, hours=True)
    assert done.returncode == 1
    assert "no answer from the head" in done.stdout
    assert "systemctl poweroff" in done.stdout


def test_an_agent_of_another_release_does_not_get_right_by_waiting(tmp_path: Path) -> None:
    done = fetching(tmp_path, 1, 3)
    assert done.returncode == 1
    assert "(try 2)" in done.stdout
    assert "meshd was upgraded meanwhile" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        {"machine": "x;reboot"}, {"machine": ""}, {"heads": ()}, {"heads": ("a b",)}, {"agent_sha256": "1"},
        {"auth_key": SecretStr("")}, {"join_token": SecretStr("a\nb")}, {"login_server": "ftp://x"},
    ],
)  # fmt: skip
def test_values_that_cannot_be_right(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        text(replace(STAGE, **wrong))  # type: ignore[arg-type]
    assert "tskey" not in str(caught.value)


def test_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="8191"):
        render(STAGE, assets.stage1_template() + "echo x\n" * 2000)


def test_the_agent_is_packed_the_same_way_each_time() -> None:
    first = assets.agent_zipapp()
    assets.agent_zipapp.cache_clear()
    assert assets.agent_zipapp() == first
    assert assets.agent_sha256() == hashlib.sha256(first).hexdigest()
    names = zipfile.ZipFile(io.BytesIO(first)).namelist()
    assert "__main__.py" in names
    assert "meshd_node/main.py" in names
    assert not [name for name in names if "pycache" in name]


def test_the_agent_is_python_3_9_and_needs_nothing_but_the_standard_library() -> None:
    for path in (assets.node_dir() / "meshd_node").glob("*.py"):
        source = path.read_text("utf-8")
        tree = ast.parse(source, str(path), feature_version=(3, 9))
        assert "from __future__ import annotations" in source, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not any(alias.name.split(".")[0] in ("meshd", "aiohttp", "pydantic") for alias in node.names)
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module is not None
                assert not node.module.startswith(("meshd", "aiohttp", "pydantic")), path
            assert not isinstance(node, getattr(ast, "Match", ())), path


# -- containers -------------------------------------------------------------------------------------------------------


def contained(root: Path, harness: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    """Stage 1 in a container whose programs are functions of the harness; it joins the tailnet at once."""
    (root / "usr/lib/meshd/pod").mkdir(parents=True, exist_ok=True)
    (root / "run").mkdir(exist_ok=True)
    harness = f"""
tailscale() {{ case $1 in version) echo 1.102.5;; *) echo "tailscale $*" >>{root}/calls;; esac; }}
type() {{ :; }}
install_missing() {{ echo "install" >>{root}/calls; }}
status() {{ [ -e {root}/up ] && cat {root}/status; }}
fetch_agent() {{
  printf '#!/bin/sh\\necho "entry point $$"\\n' >{root}/entry
  chmod 755 {root}/entry
  mv {root}/entry {root}/usr/lib/meshd/pod/entrypoint
}}
tailscaled() {{ echo "tailscaled $*" >>{root}/calls; : >{root}/up; exec sleep 1000; }}
{harness}
main
"""
    (root / "status").write_text('  "BackendState": "Running",\n "HaveNodeKey": true,\n "Online": true\n')
    script = root / "s.sh"
    script.write_text(alone(STAGE, root, harness, systemd=False).replace("/run/tailscale", f"{root}/run/tailscale"))
    argv = [*prefix, "bash", str(script)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_on_a_foreign_image_stage_1_becomes_the_entry_point(tmp_path: Path) -> None:
    done = contained(tmp_path, "svc() { false; }\necho $$ >pid", "env", "-C", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"entry point {(tmp_path / 'pid').read_text().strip()}", "the same process"
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith(f"tailscaled --statedir={tmp_path}/var/lib/tailscale ")
    assert "--outbound-http-proxy-listen=127.0.0.1:1055" in call or os.access("/dev/net/tun", os.W_OK)
    assert not (tmp_path / "s.sh").exists(), "its file held keys"
    left = subprocess.run(["pgrep", "-f", "^sleep 1000$"], capture_output=True, text=True, check=False).stdout.split()
    ours = [pid for pid in left if str(tmp_path) in os.readlink(f"/proc/{pid}/cwd")]
    assert ours == [], "its own tailscaled has ended: s6 starts another"


def test_on_our_image_s6_runs_the_services(tmp_path: Path) -> None:
    done = contained(tmp_path, f'svc() {{ echo "svc $*" >>{tmp_path}/calls; : >{tmp_path}/up; }}')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == ["svc tailscaled -u", "svc meshd-node -u"]
    assert done.stdout.endswith("the node agent is started\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="process 1 of a namespace")
def test_a_first_process_that_gives_up_waits_for_its_end(tmp_path: Path) -> None:
    """Its cloud would start it again at once, and the money is the same."""
    harness = "svc() { false; }\njoin_tailnet() { give_up 'no key'; }\nsleep() { kill -TERM 1; }"
    done = contained(tmp_path, harness, "unshare", "--pid", "--fork", "--kill-child")
    assert done.stdout.splitlines()[-2:] == ["meshd: no key", "meshd: waiting for the head to end this container"]
    other = contained(tmp_path, "svc() { :; }\njoin_tailnet() { give_up 'no key'; }\nsleep() { exit 9; }")
    assert other.returncode == 1, "under s6 it just ends"
