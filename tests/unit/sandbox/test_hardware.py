"""What is laid over an image to make it one machine."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.sandbox import hardware
from deploy.sandbox.hypervisor import MachineSpec


def test_a_machine_is_told_who_it_is_and_what_to_do(tmp_path: Path) -> None:
    hardware.lay_out(MachineSpec(name="m-1", user_data="#!/bin/sh\ntrue\n"), "10.77.0.10", tmp_path)

    seed = tmp_path / "var/lib/cloud/seed/nocloud"
    assert (seed / "user-data").read_text() == "#!/bin/sh\ntrue\n"
    assert (seed / "user-data").stat().st_mode & 0o777 == 0o600
    assert json.loads((seed / "meta-data").read_text()) == {"instance-id": "i-m-1", "local-hostname": "m-1"}
    assert "10.77.0.10 m-1" in (tmp_path / "etc/hosts").read_text().splitlines()
    assert not (tmp_path / "etc/ld.so.preload").exists()


def test_a_wrong_clock_is_a_library_and_an_offset(tmp_path: Path) -> None:
    hardware.lay_out(MachineSpec(name="m-1", user_data="", clock_offset_s=-600), "10.77.0.10", tmp_path)
    assert (tmp_path / "etc/clock-offset").read_text() == "-600\n"
    assert (tmp_path / "etc/ld.so.preload").read_text() == "/usr/lib/sandbox/clockshift.so\n"


def test_missing_gpus_do_not_show_up() -> None:
    spec = MachineSpec(name="m-1", user_data="", gpus=8, missing_gpus=1)
    assert [gpu["index"] for gpu in hardware.gpu_table(spec)] == list(range(7))
    assert hardware.gpu_table(MachineSpec(name="m-1", user_data="", gpus=1, missing_gpus=2)) == []


def test_no_two_gpus_share_a_uuid_or_a_bus_id() -> None:
    tables = [hardware.gpu_table(MachineSpec(name=name, user_data="", gpus=8)) for name in ("a", "b")]
    assert len({gpu["uuid"] for table in tables for gpu in table}) == 16
    assert len({gpu["pci_bus_id"] for gpu in tables[0]}) == 8
    assert tables[0] == hardware.gpu_table(MachineSpec(name="a", user_data="", gpus=8))


def test_memory_goes_by_the_name() -> None:
    assert hardware.gpu_memory_mib("NVIDIA H100 80GB HBM3") == 81559
    assert hardware.gpu_memory_mib("NVIDIA A100-SXM4-40GB") == 40960
    assert hardware.gpu_memory_mib("NVIDIA A100-SXM4-80GB") == 81920
    assert hardware.gpu_memory_mib("Tesla T4") == 15360
