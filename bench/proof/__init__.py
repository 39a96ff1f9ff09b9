"""What the harness has to prove of itself: its cost (``selfbench``), and what only a GPU can show (``gpu_check``)."""
