"""`bench gpu-check`: what only a GPU can prove, in parts of at most ten minutes, as small named checks.

base       what a check is, and the table of the parts
a1_truth   … b2_repeats: the parts, one file each, their checks in teaching order
needs      what a check may need of a machine
ground     what a check stands on: the options, the records of this and earlier checks, commands with a limit
answers    what a record is asked; pure functions
probes     what is tried in one process of torch, without a run
runner     which checks are begun, each in a process of its own with a limit; the findings, and the tables
child      that process
"""
