"""Names in nvidia-smi of the GPUs of a cloud's types."""

from __future__ import annotations

_BY_MODEL = {
    ("H100", 80): "NVIDIA H100 80GB HBM3",
    ("H200", 141): "NVIDIA H200",
    ("A100", 40): "NVIDIA A100-SXM4-40GB",
    ("A100", 80): "NVIDIA A100-SXM4-80GB",
    ("V100", 32): "Tesla V100-SXM2-32GB",
    ("T4", 16): "Tesla T4",
    ("T4g", 16): "NVIDIA T4G",
    ("RTX 6000", 24): "Quadro RTX 6000",
}


def nvidia_smi_name(model: str, memory_gib: int, form: str = "SXM") -> str:
    """The product name that the driver shows.

    Args:
        model: the vendor's name, e.g. "H100", "A10G".
        memory_gib: of one GPU.
        form: SXM or PCIe.
    """
    if form == "PCIe" and model in ("H100", "A100"):
        return f"NVIDIA {model} PCIe" if model == "H100" else f"NVIDIA A100-PCIE-{memory_gib}GB"
    return _BY_MODEL.get((model, memory_gib), f"NVIDIA {model}")
