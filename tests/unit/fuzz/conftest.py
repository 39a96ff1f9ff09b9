"""How much is tried: the same examples in every run of the suite, or with HYPOTHESIS_PROFILE=wide many, and others
each time."""

import os

from hypothesis import HealthCheck, settings

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
settings.register_profile("suite", max_examples=100, derandomize=True, **COMMON)
settings.register_profile("wide", max_examples=5000, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
