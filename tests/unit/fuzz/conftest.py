"""How much is tried: the same examples on every run of the suite; many, and others each time, when they are asked for
(`--hypothesis-profile=wide`)."""

from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
settings.register_profile("suite", max_examples=60, derandomize=True, **COMMON)
settings.register_profile("wide", max_examples=3000, **COMMON)
settings.load_profile("suite")
