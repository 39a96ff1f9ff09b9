"""One question per folder: which programs to run (study.py), and what came of it (result.py).

``registry`` has them all; ``programs``, ``prepare`` and ``rounds`` are what they are made with.
"""
