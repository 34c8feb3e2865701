"""One spelling for each GPU model, whatever a cloud, nvidia-smi or a person calls it. PURE.

Adapters, settings and requests all use it, so that what is asked for and what is offered compare as plain text. The
result is lower case: the model, then the form factor where a model is sold in several that differ in speed and
links: "h100-sxm", "h100-pcie", "h100-nvl", "a100-sxm", "b200", "l40s", "rtx-6000-ada". Memory is not part of it: that
has one spelling too, the size as which a card is sold.
"""

from __future__ import annotations

import re

_MEMORY = re.compile(r"\b\d+\s*gi?b\b")
_TOKEN = re.compile(r"[a-z0-9]+")
_NOISE = re.compile(r"nvidia|amd|tesla|quadro|geforce|instinct|gpu|gpus|\d+x|x\d+|graphics|generation")

#: EC2 families whose type name decides the form factor, which DescribeInstanceTypes does not tell.
_EC2_FAMILY = {
    "p3": "v100-sxm",
    "p3dn": "v100-sxm",
    "p4d": "a100-sxm",
    "p4de": "a100-sxm",
    "p5": "h100-sxm",
    "p5e": "h200-sxm",
    "p5en": "h200-sxm",
    "p6-b200": "b200",
    "p6-b300": "b300",
    "g4dn": "t4",
    "g5": "a10g",
    "g5g": "t4g",
    "g6": "l4",
    "gr6": "l4",
    "g6f": "l4",
    "gr6f": "l4",
    "g6e": "l40s",
}
_EC2_TYPE = re.compile(r"([a-z0-9-]+)\.(?:\d*x?large|metal|medium|small|micro|nano)(?:-[a-z0-9]+)?")

#: Models sold in several forms.
_FORMED = {"a100", "a800", "h100", "h200", "h800", "v100", "p100"}
#: Models with one form: tokens that must all follow each other, longest first.
_SINGLE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("rtx", "pro", "6000"), "rtx-pro-6000"),
    (("rtx", "6000", "ada"), "rtx-6000-ada"),
    (("rtx", "4000", "ada"), "rtx-4000-ada"),
    (("rtx", "a6000"), "a6000"),
    (("rtx", "a5000"), "a5000"),
    (("rtx", "a4000"), "a4000"),
    (("rtx", "6000"), "rtx-6000"),
    (("rtx6000",), "rtx-6000"),
    *(
        ((name,), name)
        for name in ("gb300", "gb200", "gh200", "b300", "b200", "h20", "l40s", "l40", "l4", "a10g", "a10")
    ),
    *(((name,), name) for name in ("a6000", "a5000", "a4000", "a40", "a30", "a16", "a2", "t4g", "t4", "p4", "k80")),
    *(((name,), name) for name in ("mi300x", "mi325x", "mi250x")),
)


#: Models that no rule above needs, since they have one form and one name; they only tell a model from a mistyped one.
_PLAIN = frozenset({
    "a800", "h800", "b100", "gb10", "p6000", "p5000", "p4000", "m60", "m40", "rtx-3060", "rtx-3070", "rtx-3080",
    "rtx-3080-ti", "rtx-3090", "rtx-3090-ti", "rtx-4060", "rtx-4070", "rtx-4070-ti", "rtx-4080", "rtx-4080-super",
    "rtx-4090", "rtx-5060", "rtx-5070", "rtx-5080", "rtx-5090", "rtx-2000-ada", "rtx-4000", "rtx-4500-ada", "rtx-5000",
    "rtx-5000-ada", "rtx-8000", "rtx-pro-4000", "rtx-pro-4500", "rtx-pro-5000", "titan-rtx", "titan-v", "a2000",
    "a4500", "mi100", "mi210", "mi250", "mi308x", "mi350x", "mi355x", "trainium", "inferentia", "gaudi", "gaudi2",
    "gaudi3", "radeon-pro-v520",
})  # fmt: skip
_FORMS = ("sxm", "pcie", "nvl")
MODELS = frozenset(
    {*_FORMED, *(f"{name}-{form}" for name in _FORMED for form in _FORMS), *(model for _, model in _SINGLE), *_PLAIN}
)
"""Every model that is known by name, normalised. A cloud may offer others: this only helps to find a mistyped one."""


def normalise(text: str) -> str:
    """The one spelling of a GPU model.

    Args:
        text: what a cloud or nvidia-smi says, e.g. "NVIDIA H100 80GB HBM3", "8x H100 (80 GB SXM5)",
            "gpu_1x_h100_pcie", or an EC2 instance type, e.g. "p5.4xlarge".

    Returns:
        The normalised model; an unknown model's own words joined by dashes; "" when nothing is left of the text.
        Normalising twice changes nothing.
    """
    lower = text.strip().lower()
    ec2 = _EC2_TYPE.fullmatch(lower)
    if ec2:
        return _EC2_FAMILY.get(ec2[1], "")
    tokens = [token for token in _TOKEN.findall(_MEMORY.sub(" ", lower)) if not _NOISE.fullmatch(token)]
    for token in tokens:
        if token in _FORMED:
            form = _form(token, tokens)
            return f"{token}-{form}" if form else token
    for words, model in _SINGLE:
        if _contains(tokens, words):
            return model
    return "-".join(tokens)


def _form(model: str, tokens: list[str]) -> str:
    if "nvl" in tokens:
        return "nvl"
    if any(token.startswith("pcie") for token in tokens):
        return "pcie"
    if any(token.startswith("sxm") for token in tokens):
        return "sxm"
    # nvidia-smi names the SXM5 part by its memory alone, and H200 has PCIe only as NVL.
    if (model == "h100" and "hbm3" in tokens) or model == "h200":
        return "sxm"
    return ""


def _contains(tokens: list[str], words: tuple[str, ...]) -> bool:
    width = len(words)
    return any(tuple(tokens[at : at + width]) == words for at in range(len(tokens) - width + 1))


def matches(wanted: str, offered: str) -> bool:
    """Whether an offered model is the one asked for, both normalised: "h100" takes "h100-sxm", that only itself.

    Only a model that is sold in several forms takes more than itself: "rtx-6000-ada" is no form of "rtx-6000".
    """
    return offered == wanted or (wanted in _FORMED and offered.startswith(f"{wanted}-"))


def related(one: str, other: str) -> bool:
    """Whether one of two models, both normalised, is the other or a form of it.

    So are "h100-sxm" and "h100" of a tool that leaves the form out; "h100-sxm" and "h100-pcie" are two models.
    """
    return matches(one, other) or matches(other, one)


def asked(text: str) -> str:
    """The normalised model out of what a person wrote; "" for an empty text.

    Raises:
        ValueError: no GPU model is in the text, e.g. "80GB" or an EC2 type without GPUs.
    """
    model = normalise(text)
    if text.strip() and not model:
        raise ValueError(
            f"{text!r} names no GPU model: say h100, a100-sxm or l40s (`meshctl offers` shows what there is)"
        )
    return model


SOLD_GB = (
    2, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256, 288
)  # fmt: skip
"""The memory of one GPU, as cards are sold and spoken of: "a 24 GB card"."""

_SIZES = {
    "rtx-pro-6000": (96,),
    "h20": (96, 141),
    "gh200": (96, 144),
    "gb200": (186, 192),
    "mi300x": (192,),
}
"""Of models whose size, as clouds tell it, could be that of another card."""

MIB_MAX = 1 << 50
"""No card has as much. An integer in a cloud's answer may be larger than any float; such an offer is refused later."""

_LEAST = 0.92
"""Clouds and drivers report at least this part of the sold size, in GiB: EC2 reports 24 decimal GB in GiB (0.931), and
nvidia-smi leaves out what error correction takes (15,109 MiB of a T4 with 16 GB)."""


def sold_gb(told_mib: float, model: str = "") -> int:
    """The memory with which a GPU is sold, in GB, out of what a cloud or nvidia-smi tells of it.

    Clouds and the driver tell of one card 22,888 MiB (EC2), 23,034 MiB (nvidia-smi) and 24 GB (Google, RunPod).

    Args:
        told_mib: in MiB.
        model: normalised.

    Returns:
        The smallest size that holds it and is not much larger; else the nearest whole number of GiB.
    """
    gib = min(told_mib, MIB_MAX) / 1024
    return next((size for size in _SIZES.get(model, SOLD_GB) if size * _LEAST <= gib < size + 0.1), round(gib))
