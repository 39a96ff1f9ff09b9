"""Peak TFLOP/s of one device for dense matrix products by precision (half of a value with sparsity), from NVIDIA's data
sheets. For devices that are not in the table there is PEAK_TFLOPS."""

# Part of a GPU's name in NVML -> precision -> TFLOP/s. The first match counts.
PEAKS = {
    "H200": {"bf16": 989.5, "fp16": 989.5, "tf32": 494.5, "fp32": 67.0},
    "H100 PCIe": {"bf16": 756.5, "fp16": 756.5, "tf32": 378.0, "fp32": 51.0},
    "H100": {"bf16": 989.5, "fp16": 989.5, "tf32": 494.5, "fp32": 67.0},
    "A100": {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5},
    "L40S": {"bf16": 362.0, "fp16": 362.0, "tf32": 183.0, "fp32": 91.6},
    "L4": {"bf16": 121.0, "fp16": 121.0, "tf32": 60.0, "fp32": 30.3},
    "V100-SXM2": {"fp16": 125.0, "fp32": 15.7},
    "T4": {"fp16": 65.0, "fp32": 8.1},
}


def peak_of(name: str, precision: str) -> float | None:
    """TFLOP/s of a GPU in a precision; None if not in the table.

    >>> peak_of("NVIDIA H100 PCIe", "tf32"), peak_of("NVIDIA L40S", "fp32"), peak_of("Tesla T4", "bf16")
    (378.0, 91.6, None)
    """
    return next((peaks.get(precision) for part, peaks in PEAKS.items() if part in name), None)
