"""What a run is: every option, the tables of modes and data sets, what goes together, defaults. It imports no torch.

fields        what an option is, and what kind of thing it can be
options       RunConfig: every option of a run, once
modes         the table of modes
data_sets     the table of data sets
rules         which options go together
resolve       defaults by device
command_line  flags and make variables <-> RunConfig
"""
