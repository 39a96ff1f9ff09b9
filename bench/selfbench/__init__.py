"""What the harness itself costs: each mode against a bare script that does the same work without it.

``programs`` are the things that are run, ``rows`` the comparisons, ``run`` the rounds, the table and the file. ``bare``
and ``join`` are the scripts that the harness is measured against; ``paired``, ``gpu_loop`` and ``input_pipeline`` let
both take turns.
"""
