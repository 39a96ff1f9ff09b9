"""One question per folder: which programs to run (study.py), what came of it (result.py), its pictures (figures.py).

``registry`` has them all; ``programs``, ``prepare`` and ``rounds`` are what they are made with.
"""
