"""What the ranks of a run do instead of training: ``network`` sends messages, ``prediction`` classifies images,
``emulation`` waits for a computation and sends; ``forecast`` computes what a step will take.

Such a run starts, is watched and ends as any other. Its config names which (``RunConfig.task``), and the worker
calls ``run`` of that folder's rank.py. plan.py, what the ranks are told, imports no torch.
"""
