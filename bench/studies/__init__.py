"""One question per folder: which programs to run (study.py), and what came of it (result.py)."""
