"""A training whose computation is waited for and not done: the real engines on real links, with more nodes than cores.

plan       what the ranks are told: the profile of one device, the dilation, the links
stand_in   the model and the optimizer that wait the measured time, with gradients of the real sizes
rank       what a rank does instead of training, and the record that rank 0 leaves
record     that record, read and typed: a kind of its own, which no table of runs, no comparison and no pool takes
result     its figures, divided back by the dilation, in a table and in words
"""
