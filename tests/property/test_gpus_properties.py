"""One spelling per GPU, for any text."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from meshd.gpus import normalise

VENDORS = ["NVIDIA", "Tesla", "GeForce", "8x", "gpu_1x_h100_pcie", "p5.4xlarge", "g6e.xlarge"]
MODELS = ["H100", "A100", "V100", "H200", "A10G", "L40S", "RTX", "6000", "Ada", "4090"]
REST = ["80GB", "40", "GB", "HBM3", "SXM5", "SXM4", "PCIe", "NVL", "(", ")", "-", "_", "x"]
WORDS = st.sampled_from(VENDORS + MODELS + REST)
TEXTS = st.one_of(st.text(max_size=40), st.lists(WORDS, max_size=7).map(" ".join))


@given(TEXTS)
def test_twice_is_once(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(TEXTS)
def test_only_plain_words(text: str) -> None:
    assert re.fullmatch(r"([a-z0-9]+(-[a-z0-9]+)*)?", normalise(text))


@given(TEXTS.filter(str.isascii))
def test_case_and_margins_do_not_matter(text: str) -> None:
    assert normalise(text) == normalise(f"  {text.upper()} ") == normalise(text.lower())


@given(st.sampled_from(["H100", "A100"]), st.sampled_from(["SXM5", "SXM4", "PCIe", "NVL"]), st.booleans())
def test_forms_are_kept_apart(model: str, form: str, with_vendor: bool) -> None:
    found = normalise(f"{'NVIDIA ' if with_vendor else ''}{model} {form}")
    assert found == f"{model.lower()}-{form.lower().rstrip('45')}"
