"""Tasks of ranks besides training: ``network`` measures messages, ``inference`` classifies images.

The config names the task (``RunConfig.task``), and the worker calls ``run`` of its ``rank.py``; ``plan.py`` imports no torch.
"""
