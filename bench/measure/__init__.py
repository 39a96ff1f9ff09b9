"""Measurements of a run: memory (NVML, torch's allocator, the host), time, and the machine."""
