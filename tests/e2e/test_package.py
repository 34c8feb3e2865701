"""meshd as a Debian package: installed, upgraded and taken back under a job, removed only without machines, purged."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.sandbox import package
from deploy.sandbox.cluster import Cluster, ClusterOptions
from deploy.sandbox.headmachine import CGROUP_CONF, CHECKOUT, SLURM_CONF, Head
from meshd import __version__
from meshd.store.migrations import MIGRATIONS
from tests import documents
from tests.documents import Block
from tests.e2e.lab import QUICK, SLURM, USER, WAIT_FOR_WORD, Lab
from tests.e2e.packages import APT_TIMEOUT_S, apt, unit
from tests.e2e.pages import APT_ANSWERS, APT_CONF, WALKER
from tests.e2e.recipes import EDITS, Person, instead
from tests.here import Here, copy_of_checkout

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,  # tests/unit/deploy/test_package.py and tests/unit/backup prove the parts
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

BUILD = "deploy/package/build"
VENV, KEPT_VENV = "/opt/meshd/venv", "/root/venv"
HOME = f"/home/{WALKER}"
NEWER = "0.999.0"
FORM = len(MIGRATIONS)
UNITS = "/usr/lib/systemd/system"


def checkout_of_newer(target: Path) -> Path:
    """This checkout as its next version: with another number, and another form of the journal."""
    copy_of_checkout(target)
    version, migrations = target / "meshd/__init__.py", target / "meshd/store/migrations.py"
    version.write_text(version.read_text().replace(__version__, NEWER))
    text = migrations.read_text()
    end = text.index(")\n\n\ndef form(")
    migrations.write_text(f'{text[:end]}    ("CREATE TABLE of_the_next_version (x TEXT) STRICT",),\n{text[end:]}')
    return target


@dataclass(frozen=True)
class Packaged:
    """A cluster on whose head meshd is a package; and the packages, as paths on the head."""

    lab: Lab
    file: Path
    this: str
    newer: str

    async def apt(self, *words: str, check: bool = True) -> str:
        return await apt(self.lab.head, *words, check=check)


def installing() -> Block:
    """How README.md has it installed."""
    (block,) = documents.share(__file__, "README.md")
    return block


def operations() -> tuple[Block, Block, Block, Block]:
    """What docs/operations.md has typed here: wheels, the way back, removing, purging."""
    wheels, back, remove, purge = documents.share(__file__, "docs/operations.md")
    return wheels, back, remove, purge


@dataclass(frozen=True)
class Files:
    """Packages of today's meshd, and of its next version."""

    this: Path
    newer: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    output = tmp_path_factory.mktemp("dist")
    newer = await package.build(checkout_of_newer(tmp_path_factory.mktemp("newer")), output)
    words = {BUILD: " ".join(map(str, await package.build_words(CHECKOUT, output)))}
    here = Here(tmp_path_factory.mktemp("typed"), words=words, timeout_s=300)
    build, *_ = installing().typed()
    await asyncio.to_thread(here.type, installing(), build)
    (this,) = output.glob(f"meshd_{__version__}_*.deb")
    return Files(this, newer)


@asynccontextmanager
async def new_cluster(name: str) -> AsyncIterator[Cluster]:
    """A cluster whose head is booted and on the tailnet, and nothing more."""
    options = ClusterOptions(
        sandbox_id=f"{name}{os.getpid() % 100000}",
        timing=QUICK,
        key_mode="reusable",
        boot_s=0.2,
        end_s=0.2,
        slurm=SLURM,
    )
    async with Cluster(options) as cluster:
        await cluster.head.boot()
        await cluster.head.join_tailnet(cluster.head_options())
        yield cluster


async def put(head: Head, file: Path) -> str:
    """Copy a package onto the head; its path there."""
    await asyncio.to_thread(shutil.copy, file, await head.root() / "root")
    return f"/root/{file.name}"


@pytest_asyncio.fixture(loop_scope="module")
async def by_hand(files: Files) -> AsyncIterator[tuple[Lab, str]]:
    """A cluster on whose head the installer has put meshd; and the package, which lies there."""
    async with new_cluster("pi") as cluster:
        head = cluster.head
        await head.run("cp", "-a", VENV, KEPT_VENV)
        await head.install()
        await head.configure(cluster.head_options())
        await head.start()
        await head.run("useradd", "--create-home", USER)
        yield Lab(cluster), await put(head, files.this)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def packaged(files: Files) -> AsyncIterator[Packaged]:
    async with new_cluster("pk") as cluster:
        head = cluster.head
        await head.shell("rm -rf /opt/meshd")  # what the image has for the installer
        at = Packaged(Lab(cluster), files.this, await put(head, files.this), await put(head, files.newer))
        await install_as_readme_says(at)
        await head.run("useradd", "--create-home", USER)
        yield at


async def install_as_readme_says(at: Packaged) -> None:
    """Type the block, on a head that has Slurm, munge and tailscale."""
    lab, head, wanted = at.lab, at.lab.head, at.lab.cluster.head_options()
    await head.prepare_slurm(wanted)
    await head.write(APT_CONF, APT_ANSWERS)
    await head.run("useradd", "--create-home", "--shell", "/bin/bash", WALKER)
    await head.shell(f"mkdir {HOME}/dist; cp {at.this} {HOME}/dist; chown -R {WALKER}: {HOME}")
    keys = {name: f"/run/typed-keys/{name}" for name in ("tailscale/auth_key", "lambda/api_key")}
    for name, file in keys.items():
        await head.write(file, wanted.credentials.get(name, "none"), "0600")
    words = {f"KEYFILE /etc/meshd/credentials/{name}": f"{file} /etc/meshd/credentials/{name}"
             for name, file in keys.items()}  # fmt: skip

    async def first(command: str) -> None:
        if command.startswith("sudo editor"):
            for state in ("active", "enabled"):
                assert (await head.run("systemctl", f"is-{state}", "meshd", check=False)).returncode != 0
            await head.run("usermod", "-aG", "meshd", WALKER)
            for name in wanted.credentials.keys() - keys.keys():
                await head.write(f"/etc/meshd/credentials/{name}", wanted.credentials[name], "0600")
            await head.write(EDITS, wanted.settings)
            await head.write("/etc/meshd/meshd.toml", "")  # the editor only adds
        if command.startswith("meshctl config"):  # init names these
            await head.run("systemctl", "restart", "munge", "slurmctld")

    _, *commands = installing().typed()
    await person(lab).block(installing(), commands, instead=instead(words), first=first, timeout_s=APT_TIMEOUT_S)


def person(lab: Lab) -> Person:
    """Who types."""
    return Person(lab, WALKER)


def site_conf(head: Head) -> str:
    """slurm.conf as the site had it before meshd."""
    return (SLURM_CONF + SLURM).replace("@HEAD_IP@", head.tailnet_ip)


async def nothing_of_meshd(head: Head) -> None:
    """Slurm's files are those from before meshd, and nothing else of it is there."""
    assert (await head.run("cat", "/etc/slurm/slurm.conf")).stdout.decode() == site_conf(head)
    assert (await head.run("cat", "/etc/slurm/cgroup.conf")).stdout.decode() == CGROUP_CONF
    left = await head.shell("ls -d /etc/meshd* /var/lib/meshd* /usr/lib/meshd /opt/meshd /usr/bin/meshctl "
                            "/usr/local/bin/meshctl /etc/systemd/system/meshd* /etc/slurm/nodes.conf "
                            "/etc/slurm/gres.conf /etc/slurm/meshd-gres.conf 2>/dev/null || true")  # fmt: skip
    assert left == ""
    await head.run("systemctl", "restart", "slurmctld")
    await head.run("scontrol", "ping")


async def test_it_takes_a_head_over_from_the_installer_and_leaves_one_that_computes(
    by_hand: tuple[Lab, str], figure: Callable[[str], None]
) -> None:
    lab, file = by_hand
    head = lab.head
    await lab.scale(1)
    machines = set(await lab.nodes())
    job = await lab.sbatch(WAIT_FOR_WORD)
    node = await lab.running(job)
    begun = (await lab.job(job))["StartTime"]
    settings = (await head.run("cat", "/etc/meshd/meshd.toml")).stdout

    async def goes_on() -> None:
        found = await lab.job(job)
        assert (found["JobState"], found["NodeList"], found["StartTime"]) == ("RUNNING", node, begun)
        assert set(await lab.nodes()) == machines

    words = await apt(head, "install", file)
    assert "taking over from deploy/head/install" in words
    await goes_on()
    assert (await head.run("cat", "/etc/meshd/meshd.toml")).stdout == settings
    for name in ("meshd.service", "meshd-slurm.path"):
        assert await unit(head, name) == (f"{UNITS}/{name}", "enabled", "active")
    left = await head.shell("ls -d /etc/systemd/system/meshd*.service /etc/systemd/system/meshd*.path "
                            "/usr/local/bin/meshctl 2>/dev/null || true")  # fmt: skip
    assert left == ""

    # An upgrade of the distribution: its python3 is another one, and the environment's is gone.
    pid = await lab.meshd_pid()
    trigger = "dpkg-trigger --by-package=python3-minimal /usr/bin/python3; dpkg --triggers-only --pending"
    await head.shell(trigger, timeout_s=APT_TIMEOUT_S)
    assert await lab.meshd_pid() == pid, "an environment that works stays"
    await head.shell(f"rm /opt/meshd/venv/bin/python*; {trigger}", timeout_s=APT_TIMEOUT_S)
    assert await lab.meshd_pid() != pid
    assert __version__ in (await head.run("meshctl", "version")).text
    await goes_on()

    # The head computes, under the package.
    enabled = (await head.run("systemctl", "is-enabled", "slurmd", check=False)).text
    await head.shell("printf '\n[head]\ngpus = []\n' >>/etc/meshd/meshd.toml; systemctl reload meshd")
    done = await lab.meshctl("init", "--yes", "--compute", "-o", "json", timeout_s=120)
    assert done.returncode == 0, done.stderr.decode()
    for step in (line.split() for line in json.loads(done.stdout)["next"]):
        if step[0] != "meshctl":
            await head.run(*step)

    async def computes() -> bool:
        return (await lab.slots())["head"].states == {"IDLE"}

    await lab.until(computes, "the head is a node")
    assert await lab.srun("-p", "head", "-n1", "hostname") == "head"

    await lab.inside(*machines, "touch", f"/tmp/end-{job}")
    await lab.completed(job)
    await lab.scale(0)
    words = await apt(head, "purge", "meshd")
    figure(f"told: {[line for line in words.splitlines() if line.startswith('meshd:')]}")
    await nothing_of_meshd(head)
    assert (await head.run("systemctl", "is-enabled", "slurmd", check=False)).text == enabled
    assert (await head.run("systemctl", "is-active", "slurmd", check=False)).text == "inactive"

    # Once more by the installer, which takes away what it has put there.
    await head.shell(f"mkdir -p {VENV}; cp -a {KEPT_VENV}/. {VENV}")  # there is no package index here
    await head.install()
    _, _, remove, _ = operations()
    _, by_installer = remove.typed()
    await head.run("useradd", "--create-home", "--shell", "/bin/bash", WALKER)
    await person(lab).block(remove, [by_installer])
    left = await head.shell("ls -d /etc/meshd/meshd.toml /opt/meshd /usr/local/bin/meshctl /etc/systemd/system/meshd* "
                            "2>/dev/null || true")  # fmt: skip
    assert left == "/etc/meshd/meshd.toml"


async def test_wheels_are_downloaded_as_the_page_says(tmp_path: Path) -> None:
    block, *_ = operations()
    folder = tmp_path / "wheels"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    here = Here(tmp_path, words={"-d DIR": f"-d {folder}"}, env={"PATH": path}, timeout_s=600)
    await asyncio.to_thread(here.block, block)
    locks = re.findall(r"-r (\S+)", next(block.typed()).command)
    wanted = {line.partition("==")[0] for lock in locks for line in (CHECKOUT / lock).read_text().splitlines()
              if "==" in line}  # fmt: skip
    there = {wheel.name.partition("-")[0].lower().replace("_", "-") for wheel in folder.glob("*.whl")}
    assert {name.lower().replace("_", "-").replace(".", "-") for name in wanted} == there


async def test_the_same_checkout_gives_the_same_package(packaged: Packaged, tmp_path: Path) -> None:
    again = await package.build(CHECKOUT, tmp_path)
    assert again.read_bytes() == packaged.file.read_bytes()


async def test_the_same_as_by_the_installer(packaged: Packaged) -> None:
    head = packaged.lab.head
    changed = (await head.run("dpkg", "--verify", "meshd", check=False)).text.splitlines()
    # The image takes no manuals and licences from packages.
    assert [line for line in changed if "/usr/share/doc/" not in line and "/usr/share/man/" not in line] == []
    assert __version__ in (await head.run("meshctl", "version")).text
    for path in (
        f"{UNITS}/slurmctld.service.d/10-meshd.conf", "/usr/lib/sysusers.d/meshd.conf", "/usr/lib/meshd/slurm-resume",
        "/usr/share/bash-completion/completions/meshctl",
        "/usr/share/meshd/recipes/README.md", "/usr/share/meshd/prometheus/meshd.rules.yml",
        "/usr/share/meshd/grafana/overview.json", "/etc/meshd/credentials/tailscale",
    ):  # fmt: skip
        await head.run("test", "-e", path)
    refused = await head.run("/srv/meshd/deploy/head/install", "--offline", check=False)
    assert refused.returncode == 1 and b"package" in refused.stderr


async def test_its_whole_life(packaged: Packaged, figure: Callable[[str], None]) -> None:
    lab, head = packaged.lab, packaged.lab.head
    await lab.scale(2)
    machines = set(await lab.nodes())
    job = await lab.sbatch(WAIT_FOR_WORD)
    node = await lab.running(job)
    started = (await lab.job(job))["StartTime"]

    async def goes_on() -> None:
        found = await lab.job(job)
        assert (found["JobState"], found["NodeList"], found["StartTime"]) == ("RUNNING", node, started)
        assert set(await lab.nodes()) == machines

    # An upgrade: a running meshd is started again, and the journal's old form is kept.
    await packaged.apt("install", packaged.newer)
    assert NEWER in (await head.run("meshctl", "version")).text
    kept = await head.shell(f"stat -c '%a %U' /var/lib/meshd/journal.db.form-{FORM}")
    assert kept == "600 slurm"
    await goes_on()

    # A backup of the new one. The old one is not put over the newer journal, and refuses the archive that has it.
    await head.run("meshctl", "backup", "--output", "/root/newer.tar")
    assert (await head.run("stat", "-c", "%a", "/root/newer.tar")).text == "600"
    words = await packaged.apt("install", "--allow-downgrades", packaged.this, check=False)
    assert f"meshctl restore /var/lib/meshd/journal.db.form-{FORM}" in words
    assert NEWER in (await head.run("meshctl", "version")).text
    assert (await head.run("systemctl", "is-active", "meshd")).text == "active"

    async def first(command: str) -> None:
        if command == "sudo systemctl start meshd":
            refused = await lab.meshctl("restore", "--yes", "/root/newer.tar")
            assert refused.returncode == 1 and f"form {FORM + 1}" in refused.stderr.decode()

    _, back, remove, purge = operations()
    former = {"form-N": f"form-{FORM}", "./meshd_FORMER_ARCH.deb": packaged.this}
    await head.write(EDITS, "")
    await person(lab).block(back, instead=instead(former), first=first, timeout_s=APT_TIMEOUT_S)
    assert __version__ in (await head.run("meshctl", "version")).text
    await goes_on()

    # A backup while it runs, put back at once: machines and job do not notice.
    await head.run("meshctl", "backup", "--output", "/root/this.tar")
    running = await lab.meshctl("restore", "--yes", "/root/this.tar")
    assert running.returncode == 1 and "--restart" in running.stderr.decode()
    told = await lab.meshctl("restore", "--yes", "--restart", "/root/this.tar")
    assert told.returncode == 0, told.stderr.decode()
    await goes_on()

    # The journal lost, and brought back by the archive.
    await head.run("systemctl", "stop", "meshd")
    await head.shell("rm -rf /var/lib/meshd /etc/meshd/meshd.toml /etc/meshd/credentials/tailscale/auth_key")
    told = await lab.meshctl("restore", "--yes", "/root/this.tar")
    assert told.returncode == 0, told.stderr.decode()
    await head.run("systemctl", "start", "meshd")
    await goes_on()

    # It stays while machines are rented.
    words = await packaged.apt("remove", "meshd", check=False)
    assert "meshctl scale --pool h100 --gpus 0" in words and all(name in words for name in machines)
    figure(f"told: {[line for line in words.splitlines() if line.startswith('meshd:')]}")
    assert (await head.run("systemctl", "is-active", "meshd", "meshd-slurm.path")).text.split() == ["active"] * 2
    await goes_on()

    machine = (await lab.by_slot())[node]["machine"]
    await lab.inside(machine, "touch", f"/tmp/end-{job}")
    await lab.completed(job)
    await lab.scale(0)
    by_apt, _ = remove.typed()
    typed = [*await person(lab).block(remove, [by_apt]), *await person(lab).block(purge)]
    words = "\n".join(one.output for one in typed)
    figure(f"told: {[line for line in words.splitlines() if line.startswith('meshd:')]}")
    await nothing_of_meshd(head)
