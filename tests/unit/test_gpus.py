"""GPU names as the clouds and nvidia-smi really write them."""

import pytest

from deploy.sandbox.hardware import gpu_memory_mib
from meshd import gpus
from meshd.daemon.providers.bounds import MEMORY_MIB_MAX
from meshd.gpus import SOLD_GB, normalise, sold_gb
from tests.unit.providers.test_brochures import brochure


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


@pytest.mark.parametrize(
    ("told_mib", "model", "sold"),
    [
        (22_888, "a10g", 24), (22_888, "l4", 24), (45_776, "l40s", 48), (16_384, "t4", 16), (40_960, "a100-sxm", 40),
        (81_920, "a100-sxm", 80), (81_920, "h100-sxm", 80), (144_384, "h200-sxm", 141), (183_296, "b200", 180),
        (274_658, "b300", 288), (91_553, "rtx-pro-6000", 96),
    ],
)  # fmt: skip
def test_the_size_of_a_card_that_ec2_tells(told_mib: int, model: str, sold: int) -> None:
    """DescribeInstanceTypes; newer cards as it would, by the decimal size."""
    assert sold_gb(told_mib, model) == sold


@pytest.mark.parametrize(
    ("told_mib", "sold"),
    [
        (7_611, 8), (11_441, 12), (11_019, 11), (10_240, 10), (12_288, 12), (15_109, 16), (15_360, 16), (16_160, 16),
        (16_376, 16), (20_470, 20), (22_731, 24), (23_028, 24), (23_034, 24), (24_564, 24), (32_510, 32), (32_607, 32),
        (39_593, 40), (40_960, 40), (45_634, 48), (46_068, 48), (49_140, 48), (79_647, 80), (81_559, 80), (95_830, 94),
        (97_871, 96), (97_887, 96), (122_570, 128), (143_771, 141), (183_359, 180), (189_471, 186), (196_592, 192),
        (275_040, 288),
    ],
)  # fmt: skip
def test_the_size_of_a_card_that_nvidia_smi_tells(told_mib: int, sold: int) -> None:
    assert sold_gb(told_mib) == sold


@pytest.mark.parametrize("size", SOLD_GB)
def test_a_size_in_words_stays(size: int) -> None:
    assert sold_gb(size * 1024) == size


@pytest.mark.parametrize(("told_mib", "size"), [(0, 0), (36 * 1024, 36), (100 * 1024, 100), (1024 * 1024, 1024)])
def test_a_size_that_no_card_has_stays(told_mib: int, size: int) -> None:
    assert sold_gb(told_mib) == size


def test_a_number_without_end_is_the_size_of_no_card() -> None:
    """An integer of an answer may be larger than any float."""
    assert sold_gb(10**400) == sold_gb(2**51) > MEMORY_MIB_MAX, "so its offer is refused"


@pytest.mark.parametrize("name", ["aws", "gce", "paperspace"])
def test_all_cards_of_the_brochures_have_the_size_with_which_they_are_sold(name: str) -> None:
    cards = {(offer.gpu, offer.gpu_memory_gib) for offer in brochure(name).offers if offer.gpus}
    assert cards
    for model, size in cards:
        assert size in SOLD_GB
        assert sold_gb(size * 1024, model) == size, "in words"
        assert sold_gb(size * 1e9 / 2**20, model) == size, "as EC2 tells it"


@pytest.mark.parametrize(("model", "sold"), [("A10", 24), ("L4", 24), ("T4", 16), ("A100", 40), ("H100", 80)])
def test_the_sandbox_s_cards(model: str, sold: int) -> None:
    assert sold_gb(gpu_memory_mib(f"NVIDIA {model}")) in (sold, 80)
