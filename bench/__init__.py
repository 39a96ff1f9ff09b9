"""A benchmark and a course: one workload under every data-parallel pattern of PyTorch."""

__version__ = "0.2.0"
