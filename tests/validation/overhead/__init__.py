"""What the harness itself costs: each mode against a bare script that does the same work without it.

benchmark       the rounds, the table and the file
rows            the comparisons, and what they say
processes       the things that are run, as processes
bare, join      the scripts that the harness is measured against
paired, gpu_loop, input_pipeline, messages   programs in which both take turns
fed, progress   the input pipeline alone; lines of progress
"""

PARTS = ("loop", "progress", "overhead", "horovod", "bound", "startup", "input", "hosts", "network", "gpu")
