"""What a run costs: memory (NVML, torch's allocator, the host) and the machine it was measured on."""
