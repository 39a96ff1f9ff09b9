"""Training scripts that have nothing to do with this project, right and wrong, each under a Watch.

``skeletons/`` holds whole programs, as a user could have written them, and ``cases/`` the others, each as a difference
of a few lines (``bench/mistakes/scripts.py``), with what a Watch must make of it (``script.py``).
``python -m tests.watched [NAMES]`` runs them and prints a table.
"""
