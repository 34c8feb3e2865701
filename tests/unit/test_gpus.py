"""GPU names as the clouds and nvidia-smi really write them."""

import pytest

from meshd import gpus
from meshd.gpus import normalise


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("H100", "h100"),
        ("8x H100 (80 GB SXM5)", "h100-sxm"),
        ("H100 (80 GB PCIe)", "h100-pcie"),
        ("gpu_1x_h100_pcie", "h100-pcie"),
        ("gpu_8x_h100_sxm5gdr", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("Tesla V100-SXM2-16GB", "v100-sxm"),
        ("Tesla T4", "t4"),
        ("NVIDIA T4G", "t4g"),
        ("NVIDIA A10G", "a10g"),
        ("A10 (24 GB PCIe)", "a10"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
        ("B200 (180 GB SXM6)", "b200"),
        ("GH200 (96 GB)", "gh200"),
        ("RTX 6000 (24 GB)", "rtx-6000"),
        ("Quadro RTX 6000", "rtx-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX A6000", "a6000"),
        ("A6000 (48 GB)", "a6000"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("p5.4xlarge", "h100-sxm"),
        ("p5en.48xlarge", "h200-sxm"),
        ("p4de.24xlarge", "a100-sxm"),
        ("p6-b200.48xlarge", "b200"),
        ("g5.xlarge", "a10g"),
        ("g4dn.metal", "t4"),
        ("c7i.xlarge", ""),
        ("Radiant Q9", "radiant-q9"),
        ("", ""),
    ],
)
def test_normalise(text: str, model: str) -> None:
    assert normalise(text) == model


@pytest.mark.parametrize(
    ("wanted", "offered", "same"),
    [
        ("h100", "h100-sxm", True),
        ("h100", "h100", True),
        ("h100-sxm", "h100-pcie", False),
        ("h100-sxm", "h100", False),
        ("l4", "l40s", False),
        ("rtx-6000", "rtx-6000-ada", False),
        ("rtx-3070", "rtx-3070-ti", False),
        ("", "", True),
        ("", "h100", False),
    ],
)
def test_a_shorter_name_takes_every_form(wanted: str, offered: str, same: bool) -> None:
    assert gpus.matches(wanted, offered) is same


@pytest.mark.parametrize(
    ("model", "name", "same"),
    [
        ("h100-sxm", "NVIDIA H100 80GB HBM3", True), ("h100-pcie", "NVIDIA H100 PCIe", True),
        ("h100-sxm", "NVIDIA H100 PCIe", False), ("h100", "NVIDIA H100 PCIe", True),
        ("a100-sxm", "NVIDIA A100-SXM4-40GB", True), ("a100-pcie", "NVIDIA A100-SXM4-40GB", False),
        ("a10g", "NVIDIA A10G", True), ("a10", "NVIDIA A10G", False), ("l4", "NVIDIA L40S", False),
        ("l40s", "NVIDIA L40S", True), ("rtx-a6000", "NVIDIA RTX A6000", True), ("a6000", "NVIDIA RTX A6000", True),
        ("rtx6000", "Quadro RTX 6000", True), ("gh200", "NVIDIA GH200 480GB", True),
        ("v100", "Tesla V100-SXM2-16GB", True),
        ("t4", "Tesla T4", True), ("h100", "NVIDIA H200", False),
        ("h100-nvl", "NVIDIA H100 NVL", True), ("h100-sxm", "NVIDIA H100 NVL", False), ("h100-sxm", "H100", True),
        ("rtx-6000", "NVIDIA RTX 6000 Ada Generation", False), ("rtx-4090", "NVIDIA GeForce RTX 4090", True),
        ("rtx-4090", "NVIDIA GeForce RTX 4090 D", False), ("RTX 5880 Ada", "NVIDIA RTX 5880 Ada Generation", True),
        ("h200-sxm", "NVIDIA H200", True), ("b200", "NVIDIA GB200", False),
    ],
)  # fmt: skip
def test_what_nvidia_smi_says_of_what_was_rented(model: str, name: str, *, same: bool) -> None:
    assert gpus.related(normalise(model), normalise(name)) is same


def test_what_people_write() -> None:
    assert [gpus.asked(text) for text in ("", " H100 ", "NVIDIA H100 80GB HBM3", "h100-sxm", "A100 SXM4")] == [
        "", "h100", "h100-sxm", "h100-sxm", "a100-sxm",
    ]  # fmt: skip
    for text in ("80 GB", "nvidia gpu", "c7i.xlarge"):
        with pytest.raises(ValueError, match="names no GPU model"):
            gpus.asked(text)
