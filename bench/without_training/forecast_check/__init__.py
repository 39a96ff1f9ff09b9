"""The forecast held against emulation over a list of settings: what `bench forecast-check` does.

settings   the list: drawn by a rule with a seed, and divided beforehand into made-with and judged-by
result     the file that it leaves: what was emulated, what is predicted of it, and by how much they differ
figure     predicted over emulated, drawn
"""
