"""The forecast and the advice compared with emulation over a list of settings, and the forecast with published
tables: `python -m tests.validation.forecast`.

settings   the list: drawn by a rule with a seed, and divided beforehand into made-with and judged-by
result     the file that it leaves: what was emulated, what is predicted of it, and by how much they differ
advice     clusters that the rule draws: the first choice of `bench predict mode` and the best that was emulated
measured   real trainings between namespaces, beside the forecast of devices as fast as theirs
published  the forecast of published tables of throughput, from each table's row of one device
figure     predicted over emulated, and over published, drawn
"""
