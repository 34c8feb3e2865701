"""Every head of the corpus: what init makes of it, and that a second run has nothing to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from meshd.bootstrap.assets import head_programs
from meshd.model.hardware import GpuFact, NodeShape
from meshd.slurm.capabilities import SlurmVersion
from meshd.slurm.conf import Line, parse
from meshd.slurm.init.codes import InitRefused, Refusal, Warn
from meshd.slurm.init.compute import taken_back
from meshd.slurm.init.plan import plan_init
from meshd.slurm.init.tree import Tree, read_tree
from meshd.slurm.init.types import AccountingState, HeadCompute, InitInput, InitPlan
from meshd.slurm.nodes import PoolLine
from tests.slurm_conf_corpus import ADDRESS, CORPUS, HEAD, Case

POOLS = (PoolLine("h100", "", 4, "h100", 2, 1, 500, ("fast",)), PoolLine("cpu", "", 2, "", 0, 1, 500))
VERSIONS = (SlurmVersion((22, 5), 8), SlurmVersion((24, 11), 5))


def look(case: Case, version: SlurmVersion) -> InitInput:
    rest = {name: text for name, text in case.files.items() if name not in ("slurm.conf", "gres.conf")}
    user = tree_of(case).get("SlurmUser") or "root"
    return InitInput(
        "lab", HEAD, ADDRESS, case.files["slurm.conf"], case.files.get("gres.conf"), None, {**rest, **case.elsewhere},
        present=frozenset(case.files), pools=POOLS, slurm_user=user, version=version, power_programs=head_programs(),
    )  # fmt: skip


def tree_of(case: Case) -> Tree:
    texts = {PurePosixPath("/etc/slurm") / name: text for name, text in {**case.files, **case.elsewhere}.items()}
    try:
        return read_tree(PurePosixPath("/etc/slurm/slurm.conf"), texts.get)
    except InitRefused:
        return read_tree(PurePosixPath("/"), lambda _: None)


def by_version(case: Case, version: SlurmVersion) -> set[Warn]:
    """Before 23.11 Slurm shares out whole nodes where nothing is set."""
    return {Warn.SELECT_TYPE} if version.release < (23, 11) and tree_of(case).get("SelectType") is None else set()


def after(have: InitInput, plan: InitPlan) -> InitInput:
    texts = {change.path.name: change.new for change in plan.files}
    return replace(
        have,
        slurm_conf=texts.get("slurm.conf", have.slurm_conf),
        gres_conf=texts.get("gres.conf", have.gres_conf),
        included={**have.included, **{link.path.name: plan.first_nodes_conf for link in plan.links[:1]}},
        links={link.path.name: str(link.target) for link in plan.links},
        oci_conf=texts.get("oci.conf", have.oci_conf),
        head_power_programs=have.power_programs,
        own_prolog=texts.get("prolog-slurmctld", have.own_prolog),
    )


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("name", CORPUS)
def test_what_init_makes_of_a_head(name: str, version: SlurmVersion) -> None:
    case = CORPUS[name]
    have = look(case, version)
    if case.refused:
        with pytest.raises(InitRefused) as caught:
            plan_init(have)
        assert caught.value.code is case.refused
        assert caught.value.cure
        return
    plan = plan_init(have)
    assert {finding.code for finding in plan.findings} == case.warns | by_version(case, version)
    new = next(change.new for change in plan.files if change.path.name == "slurm.conf")
    for line in case.has:
        assert line in new.replace("\r", "").split("\n")
    then = after(have, plan)
    again = plan_init(then)
    assert again.empty, [change.reasons for change in again.files]
    assert {finding.code for finding in again.findings} == case.warns - {Warn.SELECT_TYPE}


@pytest.mark.parametrize("name", [name for name, case in CORPUS.items() if not case.refused])
def test_accounting_is_in_force_once_and_for_all(name: str) -> None:
    """Where init may set it up: whatever form the files have, a second run changes nothing."""
    have = replace(look(CORPUS[name], VERSIONS[1]), accounting=AccountingState())
    try:
        plan = plan_init(have)
    except InitRefused as error:
        assert error.code is Refusal.WOULD_LOCK_OUT
        return
    then = after(have, plan)
    tree = read_tree(PurePosixPath("/etc/slurm/slurm.conf"), then.texts().get, then.version)
    if plan.accounting is None:
        assert {finding.code for finding in plan.findings} & {Warn.ACCOUNTING_ELSEWHERE, Warn.ACCOUNTING_EXISTS}
        return
    assert tree.get("AccountingStorageType") == "accounting_storage/slurmdbd"
    assert "gres/gpu" in tree.list_of("AccountingStorageTRES")
    assert tree.get("JobAcctGatherType")
    assert not plan_init(then).files


@pytest.mark.parametrize("name", [name for name, case in CORPUS.items() if not case.refused])
def test_nothing_else_of_the_users_text_changes(name: str) -> None:
    """Every old line is still there, in its order, but those of the keys that are told as reasons."""
    have = look(CORPUS[name], VERSIONS[1])
    plan = plan_init(have)
    change = next(change for change in plan.files if change.path.name == "slurm.conf")
    assert change.old is not None
    told = {reason.partition("=")[0].partition(" ")[0].lower() for reason in change.reasons}
    old = [line.raw.rstrip() for line in parse(change.old).lines if key_of(line) not in told]
    rest = iter([line.raw.rstrip() for line in parse(change.new).lines])
    assert all(any(line == other for other in rest) for line in old)


def key_of(line: Line) -> str:
    return "include" if line.include else line.pairs[0].key.lower() if line.pairs else ""


HEAD_NODE = HeadCompute(
    on=True, shape=NodeShape(8, 1, 1, 4, 2, 32000), found=(GpuFact(0, "RTX 4090", "GPU-0", 24564, "/dev/nvidia0"),)
)


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("name", [name for name, case in CORPUS.items() if not case.refused])
def test_the_head_becomes_a_node_and_leaves_no_trace(name: str, version: SlurmVersion) -> None:
    """In whatever form the files are: its line inherits nothing, a second run changes nothing, and all of it goes."""
    have = look(CORPUS[name], version)
    plain = after(have, plan_init(have))
    plan = plan_init(replace(plain, compute=HEAD_NODE))
    if plan.compute is None:
        assert Warn.HEAD_NODE_EXISTS in {finding.code for finding in plan.findings}
        assert not plan.files
        return
    on = replace(after(plain, plan), links=plain.links, included=plain.included, compute=HEAD_NODE)
    tree = read_tree(PurePosixPath("/etc/slurm/slurm.conf"), on.texts().get, version)
    (record,) = [one for one in tree.records("NodeName") if one.name == HEAD]
    assert record.fields.keys() == {pair.key.lower() for pair in record.at.line.pairs[1:]}, "it inherits nothing"
    assert HEAD in tree.list_of("SuspendExcNodes")
    assert "NodeName=head Name=gpu Type=rtx-4090 File=/dev/nvidia0" in (on.gres_conf or "").splitlines()
    enabled = replace(HEAD_NODE, enabled=True, active=True)
    assert plan_init(replace(on, compute=enabled)).empty
    back = plan_init(replace(on, compute=replace(enabled, on=False)))
    texts = {change.path.name: change.new for change in back.files}
    larger = (on.slurm_conf or "").replace("MaxNodeCount=11", "MaxNodeCount=10")  # a node table that grew stays so
    assert texts["slurm.conf"].replace("MaxNodeCount=11", "MaxNodeCount=10") == plain.slurm_conf
    assert texts["gres.conf"] == plain.gres_conf
    assert taken_back(larger, on.gres_conf, HEAD)[:2] == (plain.slurm_conf, plain.gres_conf)
