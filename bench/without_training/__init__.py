"""What the ranks of a run do instead of training: ``network`` sends messages, ``prediction`` classifies images.

Such a run starts, is watched and ends as any other. Its config names the errand (``RunConfig.errand``), and the worker
calls ``run`` of that folder's rank.py in place of its own phases. plan.py, what the ranks are told, imports no torch.
"""
