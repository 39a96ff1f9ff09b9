"""`bench doctor gpu`: small named checks that need a GPU, in parts of at most ten minutes.

a1_truth … b2_repeats: the parts, in teaching order. answers: pure functions of records. probes: experiments in one
process. ground: options, runs and commands of a check. runner: starts each check in its own process with a limit.
"""
