"""What a run is: every option (sections, options), the tables of modes, workloads, data sets and tasks, what goes
together (rules), defaults by device (resolve, gpu_defaults). It imports no torch."""
