"""Tasks of ranks other than training. ``RunConfig.task`` names one, and the worker calls ``run`` of its ``rank.py``."""
