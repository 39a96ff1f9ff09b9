"""What the harness has to prove of itself: what only a GPU can show (``gpu_check``)."""
