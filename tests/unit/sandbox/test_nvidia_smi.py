"""The nvidia-smi stand-in prints what the real one printed on an H100."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from deploy.sandbox import hardware
from deploy.sandbox.hypervisor import MachineSpec

SANDBOX = Path(hardware.__file__).parent
STAND_IN = SANDBOX / "image/hardware/usr/bin/nvidia-smi"
RECORDED = SANDBOX / "fixtures/nvidia-smi/h100"


class Machine:
    def __init__(self, root: Path, spec: MachineSpec) -> None:
        self.data, self.devices = root / "data", root / "dev"
        self.data.mkdir()
        self.devices.mkdir()
        (self.data / "gpus.json").write_text(json.dumps(hardware.gpu_table(spec)))
        (self.data / "nvidia-smi-q.xml").write_text((RECORDED / "smi_q.xml").read_text())
        for index in range(hardware.visible_gpus(spec)):
            (self.devices / f"nvidia{index}").write_text("")
        (self.devices / "nvidiactl").write_text("")

    def smi(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {"SANDBOX_GPU_DATA": str(self.data), "SANDBOX_GPU_DEVICES": str(self.devices)}
        argv = [sys.executable, "-I", str(STAND_IN), *words]
        return subprocess.run(argv, env=environment, text=True, capture_output=True, timeout=20, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, MachineSpec(name="lab-h100-1-aaaaaa", user_data="", gpus=2))


def same_shape(text: str) -> str:
    return re.sub(r"GPU-[0-9a-f-]{36}", "GPU-*", text)


def test_list_has_the_recorded_form(machine: Machine) -> None:
    printed = machine.smi("-L").stdout.splitlines()
    assert same_shape(printed[0]) == same_shape((RECORDED / "smi_L.txt").read_text().strip())
    assert [line.split(":")[0] for line in printed] == ["GPU 0", "GPU 1"]
    assert len(set(re.findall(r"GPU-[0-9a-f-]{36}", "\n".join(printed)))) == 2


def test_query_has_the_recorded_values(machine: Machine) -> None:
    fields = (
        "index,uuid,name,memory.total,driver_version,pci.bus_id,compute_cap,utilization.gpu,temperature.gpu,"
        "ecc.errors.uncorrected.volatile.total,mig.mode.current"
    )
    printed = machine.smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits").stdout.splitlines()
    assert same_shape(printed[0]) == same_shape((RECORDED / "smi_query.csv").read_text().strip())


def test_query_with_header_and_units(machine: Machine) -> None:
    printed = machine.smi("--query-gpu=name,memory.total", "--format=csv", "-i", "1").stdout.splitlines()
    assert printed == ["name, memory.total [MiB]", "NVIDIA H100 80GB HBM3, 81559 MiB"]


def test_remapped_rows_are_as_recorded(machine: Machine) -> None:
    rows = "remapped_rows.correctable,remapped_rows.uncorrectable,remapped_rows.pending,remapped_rows.failure"
    printed = machine.smi(f"--query-gpu=gpu_bus_id,{rows}", "--format=csv").stdout.splitlines()
    assert printed[:2] == (RECORDED / "remap.csv").read_text().splitlines()


def test_xml_names_each_gpu(machine: Machine) -> None:
    printed = machine.smi("-q", "-x").stdout
    root = ElementTree.fromstring(printed.split("\n", 2)[2])
    assert root.findtext("attached_gpus") == "2"
    assert [gpu.findtext("minor_number") for gpu in root.findall("gpu")] == ["0", "1"]
    listed = re.findall(r"GPU-[0-9a-f-]{36}", machine.smi("-L").stdout)
    assert [gpu.findtext("uuid") for gpu in root.findall("gpu")] == listed


def test_the_table_has_a_row_for_each_gpu(machine: Machine) -> None:
    printed = machine.smi().stdout
    assert printed.count("NVIDIA H100 80GB HBM3") == 2
    assert {len(line) for line in printed.splitlines()[1:] if line} == {91}


def test_a_gpu_that_does_not_open_is_not_there(machine: Machine) -> None:
    (machine.devices / "nvidia0").unlink()
    assert re.findall(r"GPU (\d)", machine.smi("-L").stdout) == ["1"]
    (machine.devices / "nvidiactl").unlink()
    refused = machine.smi("-L")
    assert refused.returncode == 4
    assert "Insufficient Permissions" in refused.stdout


def test_no_gpus_means_no_driver(tmp_path: Path) -> None:
    refused = Machine(tmp_path, MachineSpec(name="cpu", user_data="")).smi("-L")
    assert refused.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in refused.stdout


def test_an_unknown_field_is_refused(machine: Machine) -> None:
    refused = machine.smi("--query-gpu=name,shoe.size", "--format=csv")
    assert refused.returncode == 2
    assert '"shoe.size" is not a valid field' in refused.stdout
