"""A first boot: others hold apt's locks, mirrors are away, a list was cut short. All is tried again for minutes."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.node.meshd_node import packages
from deploy.node.meshd_node.errors import NotPossible
from deploy.node.meshd_node.paths import Paths
from tests.unit.node.stage1_alone import STAGE, alone
from tests.unit.node.standins import program

LISTS = (
    "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812 (unattended-upgr)\n"
    "E: Unable to lock directory /var/lib/apt/lists/"
)
DPKG = (
    "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (apt-get)\n"
    "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?"
)
DEBCONF = (
    'debconf: DbDriver "config": /var/cache/debconf/config.dat is locked by another process: Resource temporarily\n'
    "dpkg: error processing package slurmd (--configure):\n"
    "E: Sub-process /usr/bin/dpkg returned an error code (1)"
)
INTERRUPTED = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."
MIRROR = (
    "E: Failed to fetch http://mirror/debian/dists/trixie/InRelease  503  Service Unavailable\n"
    "E: Some index files failed to download. They have been ignored, or old ones used instead."
)
CUT = (
    "E: Encountered a section with no Package: header\n"
    "E: Problem with MergeList /var/lib/apt/lists/mirror_Packages\n"
    "E: The package lists or status file could not be parsed or opened."
)
HASH = "E: Failed to fetch http://mirror/Packages.gz  Hash Sum mismatch"
UNKNOWN = "E: Unable to locate package slurmd"


class Machine:
    """A scratch root with apt-get, dpkg and dpkg-query; apt-get says what `says` has for its call."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.paths = root, Paths(root)
        for name in ("bin", "usr/sbin", "var/lib/apt/lists/partial", "says"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in ("mirror_Packages", "lock"):
            (root / "var/lib/apt/lists" / name).write_text("")
        program(root / "bin", "dpkg", f'echo "dpkg $*" >>{root}/calls\n')
        program(root / "bin", "dpkg-query", f"[ -e {root}/installed ] && printf installed || exit 1\n")
        program(
            root / "bin",
            "apt-get",
            f"""
for verb in "$@"; do case "$verb" in update|install) break;; esac; done
echo "$verb" >>{root}/calls
[ -e {root}/usr/sbin/policy-rc.d ] || echo "services may start" >>{root}/calls
n=$(grep -c "^$verb$" {root}/calls)
file={root}/says/$verb.$n
[ -e "$file" ] || file={root}/says/$verb
if [ -s "$file" ]; then cat "$file" >&2; exit 100; fi
[ "$verb" = update ] || touch {root}/installed
""",
        )
        monkeypatch.setenv("PATH", f"{root / 'bin'}:/usr/bin:/bin")
        self.at_s, self.slept_s = 0.0, 0.0

    def says(self, verb: str, text: str, *tries: int) -> None:
        """In these tries, or always."""
        for suffix in [f".{n}" for n in tries] or [""]:
            (self.root / f"says/{verb}{suffix}").write_text(text)

    def sleep(self, pause_s: float) -> None:
        self.at_s += pause_s
        self.slept_s += pause_s

    def ensure(self) -> list[str]:
        """What the head is told."""
        told: list[str] = []
        packages.ensure(self.paths, ["slurmd"], told.append, lambda: self.at_s, self.sleep)
        return told

    def calls(self, verb: str) -> int:
        return (self.root / "calls").read_text().splitlines().count(verb)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("verb", "text", "kept"),
    [
        ("update", LISTS, "/var/lib/apt/lists/lock"), ("install", DPKG, "lock-frontend"),
        ("install", DEBCONF, "config.dat is locked"), ("install", INTERRUPTED, "dpkg was interrupted"),
        ("update", MIRROR, "503"), ("update", CUT, "MergeList"), ("install", CUT, "MergeList"),
        ("update", HASH, "Hash"),
    ],
)  # fmt: skip
def test_what_passes_is_waited_for_and_told_meanwhile(machine: Machine, verb: str, text: str, kept: str) -> None:
    """For a minute and more; then all is as if nothing had been."""
    machine.says(verb, text, *range(1, 21))
    machine.says("install", text if verb == "install" else UNKNOWN, *range(1, 21))
    told = machine.ensure()
    assert len(told) == 20
    assert all(kept in words and "100" in words for words in told)
    assert 60 < machine.slept_s < packages.TOTAL_S
    assert machine.calls("install") == 21
    assert machine.calls("dpkg --configure -a") == 21
    assert not (machine.root / "usr/sbin/policy-rc.d").exists()
    assert machine.calls("services may start") == 0
    cut = "MergeList" in text or "Hash" in text
    assert (machine.root / "var/lib/apt/lists/mirror_Packages").exists() is not cut
    assert (machine.root / "var/lib/apt/lists/lock").exists()


def test_what_does_not_pass_ends_with_the_words_of_the_last_try(machine: Machine) -> None:
    machine.says("update", LISTS)
    machine.says("install", UNKNOWN)
    with pytest.raises(NotPossible) as caught:
        machine.ensure()
    for words in ("100", "/var/lib/apt/lists/lock", "unattended-upgr", UNKNOWN):
        assert words in caught.value.reason
    assert packages.TOTAL_S - 2 * packages.PAUSE_S <= machine.slept_s <= packages.TOTAL_S
    assert not (machine.root / "usr/sbin/policy-rc.d").exists()


def test_an_update_that_fetched_nothing_and_ends_well_is_told_and_not_believed(machine: Machine) -> None:
    """So apt-get does: exit code 0, and only warnings."""
    told = "W: Failed to fetch http://mirror/InRelease  Could not connect to mirror:80 (connection refused)"
    program(
        machine.root / "bin",
        "apt-get",
        f"""
echo "$1" >>{machine.root}/calls
[ "$1" = install ] || {{ echo " {told}"; exit 0; }}
echo "{UNKNOWN}" >&2; exit 100
""",
    )
    with pytest.raises(NotPossible) as caught:
        machine.ensure()
    assert told in caught.value.reason
    assert UNKNOWN in caught.value.reason
    assert machine.calls("install") > 10 * packages.SURE


def test_a_package_that_no_mirror_has_is_not_waited_for(machine: Machine) -> None:
    machine.says("install", UNKNOWN)
    with pytest.raises(NotPossible) as caught:
        machine.ensure()
    assert UNKNOWN in caught.value.reason
    assert machine.calls("install") == packages.SURE


def test_an_apt_that_hangs_is_ended_and_tried_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "TRY_TIMEOUT_S", 1.0)
    apt = (machine.root / "bin/apt-get").read_text()
    program(
        machine.root / "bin",
        "apt-get",
        f"[ -e {machine.root}/hung ] || {{ touch {machine.root}/hung; sleep 600; }}\n{apt}",
    )
    told = machine.ensure()
    assert len(told) == 1
    assert "apt-get" in told[0]


def test_a_block_on_services_that_an_agent_left_behind_goes_and_a_foreign_one_stays(machine: Machine) -> None:
    policy = machine.root / "usr/sbin/policy-rc.d"
    policy.write_bytes(packages._POLICY)
    machine.ensure()
    assert not policy.exists()
    (machine.root / "installed").unlink()
    policy.write_text("#!/bin/sh\nexit 104\n")
    machine.ensure()
    assert "104" in policy.read_text()


# -- stage 1 ----------------------------------------------------------------------------------------------------------


def installing(root: Path, shell: str, *fails: str, hours: bool = False) -> subprocess.CompletedProcess[str]:
    """Stage 1 on an image without tailscale, whose installs print and fail so often, and well after that."""
    for n, words in enumerate(fails, 1):
        (root / f"fail.{n}").write_text(words)
    harness = f"""
tailscale_ok() {{ [ -e {root}/tailscale ]; }}
right_kind() {{ :; }}
start_tailscaled() {{ :; }}
join_tailnet() {{ :; }}
fetch_agent() {{ :; }}
sleep() {{ :; }}
dpkg() {{ echo "dpkg $*" >>{root}/calls; }}
systemctl() {{ echo "systemctl $*"; }}
get() {{ echo "get $1" >>{root}/calls; : >"$2"; }}
chmod() {{ :; }}
up_s() {{ echo x >>{root}/looks; echo $(($(wc -l <{root}/looks) * {400 if hours else 5})); }}
apt() {{
  echo "apt $*" >>{root}/calls
  n=$(grep -c '^apt.*install' {root}/calls)
  case "$*" in *install*)
    if [ -e {root}/fail.$n ]; then cat {root}/fail.$n; return 100; fi
    : >{root}/tailscale;;
  esac
}}
main
"""
    body = alone(replace(STAGE, power_off=True), root, harness)
    for path in ("/usr/share/keyrings", "/etc/apt/sources.list.d", "/var/lib/apt/lists"):
        (root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        body = body.replace(path, f"{root}{path}")
    (root / "os-release").write_text("ID=debian\nVERSION_CODENAME=trixie\n")
    script = root / "s.sh"
    script.write_text(body.replace("/etc/os-release", f"{root}/os-release"))
    argv = [shell, *(["sh"] if shell == "busybox" else []), str(script)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_stage_1_waits_for_locks_and_mirrors_and_says_why(tmp_path: Path, shell: str) -> None:
    done = installing(tmp_path, shell, *[LISTS] * 12, *[MIRROR] * 12)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("try ") == 24
    assert "(try 12, exit code 100): E: Could not get lock /var/lib/apt/lists/lock" in done.stdout
    assert "503" in done.stdout
    assert "powering off" not in done.stdout
    assert (tmp_path / "calls").read_text().count("dpkg --configure -a") == 25
    assert done.stdout.endswith("the node agent is started\n")


def test_stage_1_drops_lists_that_were_cut_short(tmp_path: Path) -> None:
    lists = tmp_path / "var/lib/apt/lists"
    lists.mkdir(parents=True)
    (lists / "mirror_Packages").write_text("half a li")
    assert installing(tmp_path, "dash", LISTS).returncode == 0
    assert (lists / "mirror_Packages").exists()
    (tmp_path / "tailscale").unlink()
    (tmp_path / "calls").unlink()
    assert installing(tmp_path, "dash", CUT).returncode == 0
    assert not (lists / "mirror_Packages").exists()


def test_stage_1_gives_up_after_minutes_with_the_last_words(tmp_path: Path) -> None:
    done = installing(tmp_path, "dash", *[LISTS] * 40, hours=True)
    assert done.returncode == 1
    last = [line for line in done.stdout.splitlines() if "(try" in line][-1]
    assert "/var/lib/apt/lists/lock" in last
    assert "systemctl poweroff" in done.stdout
