"""The configuration of a run: every option (sections, options), the tables of modes, workloads, data sets and tasks,
constraints (rules), defaults by device (resolve, gpu_defaults). It imports no torch."""
