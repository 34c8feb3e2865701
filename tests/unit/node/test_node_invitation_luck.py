"""The script of an invitation where luck is bad: a full disk, a lock on apt, no network, a cut at any point."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.node.invitation_script import CALM, script, text

LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812 (unattended-upgr)"
HERE = ["dpkg 1.22", "libc6:amd64 2.41", *(f"package{number} 1" for number in range(300))]
SMALL_FILES = "trap '' XFSZ\nulimit -f 1"
"""Files end after 512 bytes, as on a disk that is full by then."""
QUIET = """
SEEN=''
systemctl() { [ "$1" != -q ]; }
tailscale() { :; }
sync() { :; }
dpkg() { :; }
sleep() { :; }
"""
JOINS = f"""{CALM}{QUIET}
check() {{ :; }}
check_slurmd() {{ :; }}
keep() {{ :; }}
all_there() {{ :; }}
start_tailscaled() {{ :; }}
join_tailnet() {{ :; }}
go_back() {{ echo back; }}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("etc", "run", "var/lib/meshd-host/found/root", "opt/meshd-host/lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text("ID=debian\nVERSION_CODENAME=trixie\n")
    return tmp_path


def lists(root: Path, *more: str) -> str:
    """What dpkg-query says, in any locale's order."""
    (root / "here").write_text("".join(f"installed {line}\n" for line in (*HERE, *more)))
    return f"list_packages() {{ sort {root}/here; }}"


def complete(root: Path) -> None:
    found = root / "var/lib/meshd-host/found"
    (found / "packages").write_text("".join(sorted(f"installed {line}\n" for line in HERE)))
    for name in ("names", "absent", "complete"):
        (found / name).touch()


# -- a full disk ------------------------------------------------------------------------------------------------------


def test_a_machine_without_room_is_refused(root: Path) -> None:
    df = 'df() { printf "%s\\n" "Filesystem 1024-blocks Used Available Capacity Mounted on" "x 9 9 307200 99% /"; }'
    done = script(root, f"{df}\ncheck_room; echo taken")
    assert (done.returncode, done.stdout) == (1, "")
    assert "only 300 MiB are free in /usr" in done.stderr
    assert script(root, f"{df.replace('307200', '30720000')}\ncheck_room; echo taken").stdout == "taken\n"


def test_half_a_list_of_packages_is_never_believed(root: Path) -> None:
    """What is not in the list goes when the machine is given back: with half a list, half of the system."""
    done = script(root, f"{QUIET}\n{lists(root)}\n{SMALL_FILES}\nkeep; echo kept")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is the disk full?" in done.stderr and "stays as it is" in done.stderr
    assert not (root / "var/lib/meshd-host").exists() and not (root / "opt/meshd-host").exists()


def test_a_dpkg_that_knows_nothing_is_never_believed(root: Path) -> None:
    done = script(root, f"{QUIET}\nlist_packages() {{ :; }}\nkeep; echo kept")
    assert (done.returncode, done.stdout) == (1, "")


def test_the_way_back_purges_what_has_come(root: Path) -> None:
    complete(root)
    assert script(root, f"{QUIET}\n{lists(root)}\nkeep; echo kept").stdout == "kept\n", "what it found at first counts"
    dpkg = f'dpkg() {{ echo "$*" >>{root}/calls; }}'
    done = script(root, f"{QUIET}\n{dpkg}\n{lists(root, 'tailscale 1.90')}\ngo_back")
    assert (root / "calls").read_text() == "--purge tailscale\n"
    assert "these packages stay" in done.stderr and "tailscale" in done.stderr, "this dpkg purges nothing"
    assert not (root / "var/lib/meshd-host").exists()


@pytest.mark.parametrize("full", [SMALL_FILES, "rmdir {root}/run; : >{root}/run"])
def test_the_way_back_purges_nothing_where_it_cannot_write(root: Path, full: str) -> None:
    complete(root)
    dpkg = f": >{root}/calls\ndpkg() {{ echo called >{root}/calls; }}"
    done = script(root, f"{QUIET}\n{dpkg}\n{lists(root, 'tailscale 1.90')}\n{full.format(root=root)}\ngo_back")
    assert (done.returncode, (root / "calls").read_text()) == (1, "")
    assert "run this again" in done.stderr
    assert (root / "var/lib/meshd-host/found/complete").exists()


# -- others hold apt --------------------------------------------------------------------------------------------------


def installs(root: Path, tries: int) -> subprocess.CompletedProcess[str]:
    """Install what is missing, where others hold the lock for a number of tries of 12 s."""
    stubs = f"""
all_there() {{ [ -e {root}/there ]; }}
get() {{ : >"$2"; }}
chmod() {{ :; }}
up_s() {{ echo x >>{root}/looks; echo $(($(wc -l <{root}/looks) * 12)); }}
apt() {{
  case "$*" in *install*) ;; *) return ;; esac
  echo x >>{root}/tries
  [ "$(wc -l <{root}/tries)" -gt {tries} ] || {{ echo '{LOCKED}' >&2; return 100; }}
  : >{root}/there
}}
"""
    for path in ("usr/share/keyrings", "etc/apt/sources.list.d"):
        (root / path).mkdir(parents=True, exist_ok=True)
    return script(root, f"{JOINS}\n{stubs}\ntype() {{ :; }}\ninstall_missing; echo installed")


def test_it_waits_for_unattended_upgrades_and_says_so(root: Path) -> None:
    done = installs(root, 20)
    assert done.stdout.endswith("installed\n"), done.stderr
    assert done.stderr.count("held by process 812 (unattended-upgr)") == 20


def test_it_does_not_wait_for_ever(root: Path) -> None:
    done = installs(root, 1000)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "back")
    assert "after 10 min of tries" in done.stderr


def test_a_purge_that_waits_says_for_whom(root: Path) -> None:
    complete(root)
    told = "dpkg: frontend lock is held by 812"
    busy = f"dpkg() {{ [ -e {root}/asked ] || {{ : >{root}/asked; echo '{told}'; return 2; }}; }}"
    done = script(root, f"{QUIET}\n{busy}\n{lists(root, 'tailscale 1.90')}\ngo_back")
    assert f"waiting for up to 10 min: {told}" in done.stderr


# -- another Slurm ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["slurmd", "slurmctld", "slurmdbd", "munged"])
def test_a_slurm_that_runs_is_left_alone(root: Path, name: str) -> None:
    (root / "proc/812").mkdir(parents=True)
    (root / "proc/812/comm").write_text(f"{name}\n")
    before = sorted(root.rglob("*"))
    done = script(root, f"{CALM.replace('check_slurm() { :; }', '')}\nOLDEST=\ncheck_slurm; echo taken")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{name} runs here" in done.stderr and "stays as it is" in done.stderr
    assert sorted(root.rglob("*")) == before


# -- a cut ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "more", "goes_on"),
    [
        ("tower", "", True), ("tower", "date() { echo 1999999999; }", True), ("attic", "", False),
        ("tower", "systemctl() { :; }", False), ("tower", "mkdir $ETC/last", False),
    ],
)  # fmt: skip
def test_a_cut_after_the_head_has_accepted_it(root: Path, name: str, more: str, goes_on: bool) -> None:
    """The head waits for it to call, and no invitation is left: the same script starts its agent."""
    (root / "var/lib/meshd-host/host.json").write_text(f'{{"host": "{name}", "token": "x"}}')
    (root / "run/systemd/system").mkdir(parents=True)
    python = 'python3() { echo "python3 $*"; }'
    done = script(root, f"{CALM}{QUIET}\n{python}\n{more}\nmain")
    started = f"python3 {root}/opt/meshd-host/lib enrol\n"
    assert (done.returncode, done.stdout) == ((0, started) if goes_on else (1, "")), done.stderr
    assert ("is the host tower" in done.stderr) is goes_on
    assert goes_on or "host of a cluster already" in done.stderr


@pytest.mark.parametrize("accepted", [False, True])
def test_what_is_half_done_ends_before_it_is_taken_back(root: Path, accepted: bool) -> None:
    """Whoever closes the terminal: an agent that went on enrolling would be one of a machine without it."""
    agent = f"fetch_agent() {{ echo $$ >{root}/began; exec sleep 60; }}\npython3() {{ echo agent; }}"
    process = subprocess.Popen(
        # A run of tests behind nohup ignores SIGHUP, and a shell cannot trap what it was born to ignore.
        ["env", "--default-signal=HUP", "dash", "-c", text(root, f"{JOINS}\n{agent}\nmain")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    while not (root / "began").exists():
        assert process.poll() is None
        time.sleep(0.01)
    if accepted:
        (root / "var/lib/meshd-host/host.json").write_text('{"host": "tower"}')
    process.send_signal(signal.SIGHUP)
    said, why = process.communicate(timeout=30)  # ends when nobody has the pipe any more
    assert (process.returncode, said) == ((0, "agent\n") if accepted else (1, "back\n")), why


def test_without_an_answer_it_gives_up(root: Path) -> None:
    stubs = f"""
fetch_agent() {{ echo '100.64.0.1: timed out'; exit 1; }}
up_s() {{ echo x >>{root}/looks; echo $(($(wc -l <{root}/looks) * 100)); }}
"""
    done = script(root, f"{JOINS}\n{stubs}\nmain")
    assert (done.returncode, done.stdout) == (1, "back\n")
    assert "not enrolled yet (try 1): 100.64.0.1: timed out" in done.stderr
    assert "no answer from the head" in done.stderr
