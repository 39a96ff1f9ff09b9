"""What a run is: every option, the tables of modes and data sets, what goes together, defaults. It imports no torch.

fields        what an option is, and what kind of thing it can be
options       RunConfig: every option of a run, once
values        options that say several things in one text, read
modes         the table of modes
workloads     the table of workloads
data_sets     the table of data sets
own           models and data of the user's, as options name them
hosts         HOSTS, read and shared out
rules         which options go together
resolve       defaults by device
gpu_defaults  what a GPU is given that nobody chose
peak_flops    what a GPU can compute at most, by its name
command_line  flags and make variables <-> RunConfig
"""
