"""One question per folder: which configurations to run (study.py), and the results (result.py)."""
