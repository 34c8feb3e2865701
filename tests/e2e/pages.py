"""The walks through the documents: for each page what has to be there, and what its words stand for here."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from deploy.sandbox import images, wheels
from deploy.sandbox.clouds.host import BootDefaults
from deploy.sandbox.mirror import Mirror, ensure_archive
from deploy.sandbox.network import GATEWAY
from meshd.provider_api import CLUSTER_TAG, MACHINE_TAG
from tests import documents
from tests.e2e.hook import hooked
from tests.e2e.lab import Lab
from tests.e2e.mlflow import without_mlflow_again
from tests.e2e.packages import APT_TIMEOUT_S
from tests.e2e.recipes import EDITS, Person, Walk, instead
from tests.e2e.workplace import SHARE, without_accounting_again

WALKER = "ann"
"""Who types: a user of the head who is in the group `meshd`."""

KEYS = "/run/typed-keys"
PACKAGES = ("age", "prometheus")
"""What pages tell to install."""
APT_CONF, APT_SOURCES = "/etc/apt/apt.conf.d/99typed", "/run/typed-sources.list"
APT_ANSWERS = f"""\
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dpkg::Use-Pty "0";
Dir::Etc::SourceList "{APT_SOURCES}";
Dir::Etc::SourceParts "/dev/null";
"""
AGE_KEY = "/run/typed-age"
WAITING = f"""\
runuser -l {WALKER} -c 'sbatch -N6 --gres=gpu:1 --chdir=/tmp -o none -t 1 --wrap true'
until meshctl status | grep -q ^JOB; do sleep 0.5; done
"""
"""A job that waits for machines, and meshd knows it."""

World = Callable[[Lab], AbstractAsyncContextManager[Mapping[str, str] | None]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page whose console blocks are typed.

    Attributes:
        page: its path.
        machines: how many are READY before; None for whatever is there.
        image: what machines boot from.
        files: files in the walker's home by name, with their text.
        edits: what an editor adds to its file.
        words: what stands in the page, with what is typed instead; the first that fits.
        first: a script of root's before the command that begins so; it is not part of the page.
        world: what is there meanwhile; it may tell further words.
        nightly: it takes long, and something shorter proves most of it in each run.
    """

    page: str
    machines: int | None = None
    image: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    edits: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    first: Mapping[str, str] = field(default_factory=dict)
    world: World | None = None
    nightly: bool = False


JOB = "#!/bin/sh\n#SBATCH --time=1\n#SBATCH --output=/tmp/train-%j.out\nhostname\n"


@asynccontextmanager
async def with_keys(lab: Lab) -> AsyncIterator[Mapping[str, str]]:
    """Files with the keys that a page calls KEYFILE."""
    credentials = "/etc/meshd/credentials"
    await lab.head.run("cp", "-r", credentials, KEYS)
    if "lambda" not in lab.cluster.options.providers:
        await lab.head.write(f"{KEYS}/lambda/api_key", "none")
    try:
        yield {
            f"KEYFILE {credentials}/{name}": f"{KEYS}/{name} {credentials}/{name}"
            for name in ("tailscale/auth_key", "lambda/api_key")
        }
    finally:
        await lab.head.run("rm", "-r", KEYS)


@asynccontextmanager
async def with_packages(lab: Lab) -> AsyncIterator[None]:
    """apt takes packages from an archive in the sandbox, and asks nothing."""
    archive = await ensure_archive("trixie", PACKAGES)
    await lab.head.write(APT_SOURCES, f"deb [trusted=yes] http://{GATEWAY}/debian trixie main\n")
    await lab.head.write(APT_CONF, APT_ANSWERS)
    try:
        async with Mirror(lab.cluster.world.network, archive):
            await lab.head.run("apt-get", "update", timeout_s=APT_TIMEOUT_S)
            yield
    finally:
        await lab.head.shell(f"rm -rf {APT_SOURCES} {APT_CONF} /var/lib/apt/lists/*; apt-get clean")


@asynccontextmanager
async def with_keys_and_age(lab: Lab) -> AsyncIterator[Mapping[str, str]]:
    """`with_keys`; and age is installed. What was encrypted with it can be read with the recipient's key alone."""
    async with with_keys(lab) as words, with_packages(lab):
        await lab.head.run("apt-get", "install", "age", timeout_s=APT_TIMEOUT_S)
        try:
            await lab.head.run("age-keygen", "-o", AGE_KEY)
            yield {**words, "RECIPIENT": (await lab.head.run("age-keygen", "-y", AGE_KEY)).text}
            told = await lab.head.shell(f"age -d -i {AGE_KEY} /home/{WALKER}/head.tar.age | tar -t")
            assert "etc/meshd/meshd.toml" in told.split()
        finally:
            await lab.head.run("rm", "-f", AGE_KEY)
            await lab.head.run("apt-get", "purge", "age", timeout_s=APT_TIMEOUT_S)


@asynccontextmanager
async def with_room_for_prometheus(lab: Lab) -> AsyncIterator[None]:
    """Prometheus may be installed, and reads meshd in the end. Afterwards it is gone."""
    text = await settings(lab)
    async with with_packages(lab):
        try:
            yield

            async def scraped() -> bool:
                told = await lab.head.run("curl", "-sS", "http://127.0.0.1:9090/api/v1/targets", check=False)
                targets = json.loads(told.stdout)["data"]["activeTargets"] if told.returncode == 0 else []
                return [one["health"] for one in targets if one["scrapePool"] == "meshd"] == ["up"]

            await lab.until(scraped, "Prometheus reads meshd")
        finally:
            await lab.head.run("apt-get", "purge", "--autoremove", "prometheus", timeout_s=APT_TIMEOUT_S)
            await lab.head.run("rm", "-rf", "/etc/prometheus", "/var/lib/prometheus")
            await lab.write_settings(text)
            await lab.restart_meshd()


@asynccontextmanager
async def with_a_leak(lab: Lab) -> AsyncIterator[None]:
    """A volume whose machine is gone, and nothing else that leaked."""

    async def settled() -> bool:  # devices of machines that others had are being deleted
        return (await lab.meshctl("audit", timeout_s=120)).returncode == 0

    await lab.until(settled, "all is accounted for")
    gone = "lab-h100-1-k7q2mz"
    things = lab.cluster.clouds.ec2.things
    tags = {CLUSTER_TAG: "lab", MACHINE_TAG: gone, "Name": gone}
    things.add("volume", "us-east-1", tags=tags, thing_id="vol-0f3c5", age=timedelta(days=9))
    try:
        yield
    finally:
        things.clear()


@asynccontextmanager
async def with_a_job(lab: Lab) -> AsyncIterator[Mapping[str, str]]:
    """A job of the walker's on both nodes, and what a job may have left there."""
    argv = ["runuser", "-l", WALKER, "-c"]
    script = "sbatch --parsable -N2 --chdir=/tmp -o none --wrap 'srun mkdir -p /tmp/out /tmp/checkpoints; sleep 600'"
    job = (await lab.head.run(*argv, script)).text
    await lab.running(job)
    await lab.head.run(*argv, f"srun --jobid={job} --overlap mkdir -p /tmp/out /tmp/checkpoints")
    try:
        yield {"--job 17": f"--job {job}"}
    finally:
        await lab.head.run("scancel", job)


@asynccontextmanager
async def with_a_receiver(lab: Lab) -> AsyncIterator[None]:
    """Somebody is told of problems."""
    async with hooked(lab, "chat"):
        yield


@asynccontextmanager
async def with_a_student(lab: Lab) -> AsyncIterator[None]:
    """Somebody may get an account meanwhile."""
    try:
        yield
    finally:
        await lab.head.run("userdel", "--remove", "student", check=False)


@asynccontextmanager
async def with_ids(lab: Lab) -> AsyncIterator[Mapping[str, str]]:
    """The ids of two machines. Neither is a spot machine, so no cloud takes one back."""
    first, second = (machine.id for machine in lab.alive("aws"))
    yield {"aws/INSTANCE_ID": f"aws/{first}", "runpod/POD_ID/preempt": f"aws/{second}/die", "curl -s ": "curl -sSf "}


@asynccontextmanager
async def with_a_place_to_work(lab: Lab) -> AsyncIterator[None]:
    """Accounting and MLflow may be set up."""
    async with without_accounting_again(lab), without_mlflow_again(lab):
        yield


@asynccontextmanager
async def with_packages_at_home(lab: Lab) -> AsyncIterator[None]:
    """Two nodes have the head's homes, and the walker's has what pip and uv install: machines do not reach PyPI."""
    store = f"/home/{WALKER}/wheels"
    async with lab.also(SHARE):
        served = await lab.meshctl("init", "--share", "--yes")
        assert served.returncode == 0, served.stderr.decode()
        await lab.head.run("cp", "-r", "/usr/share/sandbox/wheels", store)
        with tempfile.TemporaryDirectory() as folder:
            await wheels.download(["uv", "six"], Path(folder), await images.ensure_base("trixie"), Path(folder) / "log")
            for file in Path(folder).glob("*.whl"):
                shutil.copy(file, await lab.head.root() / store.lstrip("/"))
        await lab.have(2)
        yield
        await lab.reset()


def block_of(page: str, language: str, number: int = 0) -> str:
    """The text of a page's block."""
    return [block for block in documents.page(page) if block.language == language][number].text


LOAD = block_of("docs/simulate.md", "toml").replace("a100", "h100").replace("7d", "9h").replace("= 8  ", "= 1  ")
DUMP = """\
JobID|User|Partition|Submit|Start|State|ElapsedRaw|NNodes|ReqTRES
1|ann|h100|2026-11-01T10:00:00|2026-11-01T10:01:00|COMPLETED|600|2|cpu=2,gres/gpu=2,node=2
"""
HOME = f"/home/{WALKER}"
TRAIN = """\
import os, six, sys
assert six.__file__.startswith(os.path.dirname(os.path.dirname(sys.executable)) + "/"), six.__file__
"""
FROM_HOME = {
    ".config/pip/pip.conf": f"[global]\nno-index = true\nfind-links = {HOME}/wheels\n",
    ".config/uv/uv.toml": f'no-index = true\nfind-links = ["{HOME}/wheels"]\n',
}
OFFLINE = {"mlflow/install": "mlflow/install --offline", "head/install": "head/install --offline"}

WALKS = (
    Page("docs/api.md", words={"curl -s ": "curl -sSf "}),
    Page("docs/guards.md"),
    Page("docs/audit.md", world=with_a_leak),
    Page("docs/notifications.md", world=with_a_receiver),
    Page("docs/users.md", machines=1, world=with_a_student),
    Page(
        "docs/meshctl.md", machines=0, words={"h100-3": "h100-1", "explain h100-2": "explain h100-3"},
        first={"meshctl explain": "meshctl scale --gpus 3 --yes", "meshctl status": WAITING,
               "meshctl ssh": f"scancel -u {WALKER}"},
    ),
    Page("docs/money.md", machines=1),
    Page("docs/tailnet.md", machines=2),
    Page("docs/files.md", machines=2, world=with_a_job, files={"data/one": "1\n"}),
    Page("docs/troubleshooting.md", machines=2, world=with_keys, words={"POOL": "h100", "--gpus N": "--gpus 2"}),
    Page("docs/sandbox.md", machines=2, world=with_ids),
    Page("docs/monitoring.md", world=with_room_for_prometheus, nightly=True),
    Page("docs/operations.md", machines=2, world=with_keys_and_age, words={"curl ": "curl -sSf ", **OFFLINE},
         first={"sudo meshctl backup": "rm -f /var/backups/head.tar"}, nightly=True),
    Page("README.md", machines=0, files={"train.sh": JOB}, image="trixie-torch", world=with_a_place_to_work,
         edits='[mlflow]\nenabled = true\nartifacts = "/srv/data/mlflow"\n',
         words={"explain 1": "explain h100-1", **OFFLINE}, nightly=True),
    Page("docs/environments.md", world=with_packages_at_home, files={"train.py": TRAIN, **FROM_HOME},
         words={" torch": " six"}, first={"srun ~/uv/bin/uv venv": f"rm -r {HOME}/env"}, nightly=True),
    Page("docs/accounting.md", world=without_accounting_again),
    Page("docs/services.md", world=without_mlflow_again, words=OFFLINE, nightly=True,
         edits=block_of("docs/services.md", "toml").replace("/data", "/srv/data")),
    Page("docs/simulate.md", files={"week.toml": LOAD, "dump": DUMP}, world=without_accounting_again,
         first={"meshctl simulate --sacct": f"cp /etc/meshd/meshd.toml /home/{WALKER}/other.toml",
                "TZ=UTC sacct ": "meshctl init --accounting --yes"}, nightly=True),
)  # fmt: skip


@asynccontextmanager
async def walker(lab: Lab, page: Page) -> AsyncIterator[Person]:
    """Somebody with a new account, whose home has the page's files."""
    await lab.head.run("useradd", "--create-home", "--groups", "meshd", "--shell", "/bin/bash", WALKER)
    try:
        for name, text in page.files.items():
            await lab.head.write(f"/home/{WALKER}/{name}", text)
        await lab.head.run("chown", "-R", f"{WALKER}:{WALKER}", f"/home/{WALKER}")
        await lab.head.write(EDITS, f"\n{page.edits}")
        yield Person(lab, WALKER)
    finally:
        await lab.head.run("scancel", "-u", WALKER, check=False)
        await lab.head.run("loginctl", "terminate-user", WALKER, check=False)
        await lab.head.run("pkill", "-KILL", "-u", WALKER, check=False)
        await lab.head.run("userdel", "--remove", WALKER)
        await lab.head.shell(f"rm -f {EDITS} /tmp/typed-{WALKER}* /tmp/typed-root*")


@asynccontextmanager
async def no_world(lab: Lab) -> AsyncIterator[None]:
    """Nothing but the lab."""
    yield


async def walk(lab: Lab, page: Page) -> Walk:
    """Type all of a page. Raises AssertionError, which names PAGE:LINE."""
    text = await settings(lab)
    if page.image:
        lab.boot(BootDefaults(image=page.image))
    try:
        async with walker(lab, page) as person:
            if page.machines is not None:
                await lab.have(page.machines)
            async with (page.world or no_world)(lab) as more:
                return await _walk(lab, page, person, {**(more or {}), **page.words})
    finally:
        if await settings(lab) != text:
            await lab.write_settings(text)


async def _walk(lab: Lab, page: Page, person: Person, words: Mapping[str, str]) -> Walk:
    slots = sorted(await lab.by_slot())
    if page.machines:
        words = {
            "'h100-[1-4]'": ",".join(slots),
            **{f"h100-{number} ": f"{slot} " for number, slot in enumerate(slots, 1)},
            **{f"h100-{number}:": f"{slot}:" for number, slot in enumerate(slots, 1)},
            **words,
        }

    async def well() -> bool:
        return (await lab.meshctl("doctor")).returncode == 0

    async def first(command: str) -> None:
        for beginning, script in page.first.items():
            if command.startswith(beginning):
                await lab.head.shell(script)
        if command.startswith("meshctl doctor"):  # what was just started may need some seconds
            await lab.until(well, "all checks are well")

    async def node() -> str:
        return next(iter(await lab.nodes()))

    return await person.read(page.page, instead=instead(words), first=first, node=node)


async def settings(lab: Lab) -> str:
    """The head's meshd.toml."""
    return (await lab.head.run("cat", "/etc/meshd/meshd.toml")).stdout.decode()
