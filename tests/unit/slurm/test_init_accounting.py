"""`meshctl init --accounting`: what it plans, and what it leaves to others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from meshd.errors import CommandError, SlurmError
from meshd.runtime.run import Result
from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.conf import parse
from meshd.slurm.init.accounting import DROP_IN, HEADER, MARIADB_CONF
from meshd.slurm.init.accounting_setup import AccountingSetup
from meshd.slurm.init.codes import InitRefused, Refusal, Warn
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.types import AccountingPlan, AccountingState, InitInput, InitPlan
from meshd.slurm.nodes import PoolLine

POOL = PoolLine("h100", "", 2, "h100", 1, 1, 500)
CONF = "ClusterName=Lab\nSlurmctldHost=head(100.64.0.1)\nSlurmUser=slurm\nStateSaveLocation=/var/spool/s\n"
SLURMDBD = PurePosixPath("/etc/slurm/slurmdbd.conf")
THERE = frozenset({MARIADB_CONF, DROP_IN, SLURMDBD})


def have(conf: str = CONF, state: AccountingState | None = None, **more: object) -> InitInput:
    known = InitInput("lab", "head", "100.64.0.1", conf, pools=(POOL,), version=SlurmVersion((24, 11), 5))
    return replace(known, accounting=state or AccountingState(), **more)


def new_conf(plan: InitPlan) -> str:
    return next(change.new for change in plan.files if change.path.name == "slurm.conf")


def value(plan: InitPlan, key: str) -> str:
    (found,) = [line.value(key) for line in parse(new_conf(plan)).lines if line.value(key) is not None]
    return found or ""


def test_services_come_before_slurm_conf_names_them() -> None:
    plan = plan_init(have())
    assert plan.accounting
    assert [change.path for change in plan.accounting.files] == [MARIADB_CONF, DROP_IN, SLURMDBD]
    assert not any(change.path in THERE for change in plan.files)
    assert (plan.accounting.start, plan.accounting.register, plan.accounting.cluster) == (True, True, "lab")
    assert plan.restart_slurmctld
    assert value(plan, "AccountingStorageType") == "accounting_storage/slurmdbd"
    assert value(plan, "AccountingStorageHost") == "localhost"
    assert value(plan, "AccountingStorageTRES") == "gres/gpu"
    assert "AccountingStorageEnforce" not in new_conf(plan)


def test_without_the_option_nothing_of_it_is_planned() -> None:
    plan = plan_init(replace(have(), accounting=None))
    assert plan.accounting is None
    assert "Accounting" not in new_conf(plan)


def test_only_slurm_user_reads_slurmdbd_conf_and_no_password_is_in_it() -> None:
    plan = plan_init(have(slurm_user="hpc"))
    assert plan.accounting
    conf = next(change for change in plan.accounting.files if change.path == SLURMDBD)
    assert (conf.mode, conf.owner) == (0o600, "hpc")
    assert "StoragePass" not in conf.new
    assert "StorageUser=hpc" in conf.new
    assert "User=hpc" in next(change.new for change in plan.accounting.files if change.path == DROP_IN)


@pytest.mark.parametrize(("memory_mib", "buffer"), [(1024, "256M"), (200, "128M"), (512_000, "2048M")])
def test_innodb_gets_a_part_of_the_memory(memory_mib: int, buffer: str) -> None:
    plan = plan_init(have(state=AccountingState(memory_mib=memory_mib)))
    assert plan.accounting
    assert f"innodb_buffer_pool_size = {buffer}\n" in plan.accounting.files[0].new


@pytest.mark.parametrize(
    ("line", "gathers"),
    [
        ("ProctrackType=proctrack/cgroup", "jobacct_gather/cgroup"),
        ("ProctrackType=proctrack/linuxproc", "jobacct_gather/linux"),
        ("", "jobacct_gather/cgroup"),
        ("JobAcctGatherType=jobacct_gather/none", "jobacct_gather/none"),
    ],
)
def test_how_use_is_measured(line: str, gathers: str) -> None:
    assert value(plan_init(have(f"{CONF}{line}\n")), "JobAcctGatherType") == gathers


def test_kinds_of_tres_that_are_there_stay() -> None:
    plan = plan_init(have(f"{CONF}AccountingStorageTRES=gres/gpu:a100,license/x\n"))
    assert value(plan, "AccountingStorageTRES") == "gres/gpu:a100,license/x,gres/gpu"


def again(first: InitInput, plan: InitPlan, state: AccountingState) -> InitPlan:
    files = {change.path.name: change.new for change in plan.files}
    then = replace(
        first,
        slurm_conf=files["slurm.conf"],
        gres_conf=files["gres.conf"],
        oci_conf=files["oci.conf"],
        included={"nodes.conf": plan.first_nodes_conf},
        links={link.path.name: str(link.target) for link in plan.links},
        running={"accountingstoragetype": "accounting_storage/slurmdbd", "accountingstoragetres": "cpu,mem,gres/gpu"},
        accounting=state,
    )
    return plan_init(then)


def test_a_second_run_has_nothing_to_do_and_an_unfinished_one_goes_on() -> None:
    first = have()
    plan = plan_init(first)
    done = AccountingState(present=THERE, slurmdbd_conf=HEADER, serves=True, registered=True)
    assert again(first, plan, done).empty
    assert not again(first, plan, done).restart_slurmctld
    stopped = again(first, plan, replace(done, serves=False, registered=False))
    assert not stopped.empty
    assert stopped.accounting
    assert (stopped.accounting.files, stopped.accounting.start, stopped.accounting.register) == ((), True, True)
    edited = replace(done, slurmdbd_conf=f"{HEADER}PurgeJobAfter=1month\n", present=THERE - {MARIADB_CONF})
    (left,) = again(first, plan, edited).accounting.files  # type: ignore[union-attr]
    assert left.path == MARIADB_CONF


@pytest.mark.parametrize(
    ("lines", "state", "code"),
    [
        (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=db1\n",
            AccountingState(missing=("slurmdbd",)),
            Warn.ACCOUNTING_ELSEWHERE,
        ),
        (
            "AccountingStorageType=accounting_storage/slurmdbd\n",
            AccountingState(slurmdbd_conf="DbdHost=head\n", serves=True),
            Warn.ACCOUNTING_EXISTS,
        ),
        ("", AccountingState(slurmdbd_conf=""), Warn.ACCOUNTING_EXISTS),
    ],
)
def test_what_others_have_set_up_stays(lines: str, state: AccountingState, code: Warn) -> None:
    plan = plan_init(have(CONF + lines, state))
    assert plan.accounting is None
    assert code in {finding.code for finding in plan.findings}
    assert all(line in new_conf(plan) for line in lines.splitlines())
    assert new_conf(plan).count("Accounting") == lines.count("Accounting")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "head", "100.64.0.1"])
def test_the_heads_own_names_are_local(host: str) -> None:
    lines = f"AccountingStorageType=slurmdbd\nAccountingStorageHost={host}\n"
    plan = plan_init(have(CONF + lines))
    assert plan.accounting
    assert value(plan, "AccountingStorageHost") == host


@pytest.mark.parametrize(
    ("lines", "state", "code"),
    [
        ("", AccountingState(missing=("mariadb-server", "slurmdbd")), Refusal.PACKAGES_MISSING),
        ("", AccountingState(missing=("mariadb-server",), other_database=True), Refusal.OTHER_DATABASE),
        ("AccountingStorageEnforce=associations,limits\n", AccountingState(), Refusal.WOULD_LOCK_OUT),
    ],
)
def test_what_is_refused(lines: str, state: AccountingState, code: Refusal) -> None:
    with pytest.raises(InitRefused) as caught:
        plan_init(have(CONF + lines, state))
    assert caught.value.code is code
    assert caught.value.cure


class Machine:
    """Programs on a head: what was run, and the answers."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = answers
        self.ran: list[str] = []

    async def __call__(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None,
        env: Mapping[str, str] | None = None, check: bool = True,
    ) -> Result:  # fmt: skip
        line = f"{' '.join(argv[:1] if argv[0] == 'mariadb' else argv)} {(stdin or b'').decode()}".strip()
        self.ran.append(line)
        answer = next((text for start, text in self.answers.items() if line.startswith(start)), "")
        if answer == "fails":
            raise CommandError(list(argv), 1, "refused")
        return Result(tuple(argv), 0, answer, "")


def services(**more: object) -> AccountingPlan:
    plan = AccountingPlan((), True, True, "lab", "slurm", 1, PurePosixPath("/nowhere"))
    return replace(plan, **more)  # type: ignore[arg-type]


def no_clock() -> object:
    raise AssertionError("it waits for nothing")


def setup(machine: Machine) -> AccountingSetup:
    return AccountingSetup(machine, no_clock)  # type: ignore[arg-type]


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(SlurmError):
        asyncio.run(call())  # type: ignore[arg-type]


def test_the_entry_gets_the_id_that_the_cluster_has(tmp_path: Path) -> None:
    """slurmctld 24.11 ends with CLUSTER ID MISMATCH otherwise."""
    (tmp_path / "clustername").write_text("lab|846\n")
    machine = Machine({"sacctmgr -nP show": "other\n"})
    asyncio.run(setup(machine).register(services(state_dir=PurePosixPath(tmp_path))))
    assert "sacctmgr -i -Q add cluster lab" in machine.ran
    assert machine.ran[-1] == "mariadb UPDATE `slurm_acct_db`.cluster_table SET id = 846 WHERE name = 'lab'"


@pytest.mark.parametrize("text", ["lab", "other|846", "lab|0", "lab|99999", "lab|1 OR 1=1", "lab|²", ""])
def test_other_saved_names_change_no_id(tmp_path: Path, text: str) -> None:
    (tmp_path / "clustername").write_text(text)
    machine = Machine({"sacctmgr -nP show": "lab\n"})
    asyncio.run(setup(machine).register(services(state_dir=PurePosixPath(tmp_path))))
    assert machine.ran == ["sacctmgr -nP show cluster format=cluster"]


@pytest.mark.parametrize("plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_slurmuser_plants_there_ends(tmp_path: Path, plant: Callable[[Path], object]) -> None:
    plant(tmp_path / "clustername")
    machine = Machine({"sacctmgr -nP show": "lab\n"})
    asyncio.run(setup(machine).register(services(state_dir=PurePosixPath(tmp_path))))
    assert machine.ran == ["sacctmgr -nP show cluster format=cluster"]


def test_an_id_of_another_cluster_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "clustername").write_text("lab|846")
    machine = Machine({"sacctmgr -nP show": "lab\n", "mariadb SELECT": "old\n"})
    refused(lambda: setup(machine).register(services(state_dir=PurePosixPath(tmp_path))))
    assert not any("UPDATE" in line for line in machine.ran)


@pytest.mark.parametrize("name", ["lab'; DROP TABLE x", "", "-i", "a" * 41])
def test_a_name_that_is_none_reaches_no_program(name: str) -> None:
    machine = Machine({})
    refused(lambda: setup(machine).register(services(cluster=name)))
    refused(lambda: setup(machine).start_services(services(user=f"{name}'")))
    assert machine.ran == []


def test_a_user_of_the_database_with_a_password_stays() -> None:
    machine = Machine({"mariadb SELECT plugin": "mysql_native_password\n"})
    refused(lambda: setup(machine).start_services(services()))
    assert not any(line.startswith("mariadb CREATE") for line in machine.ran)
