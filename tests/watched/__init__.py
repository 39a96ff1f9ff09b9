"""Training scripts that have nothing to do with this project, right and wrong, each under a Watch.

Every file in ``right/`` and ``wrong/`` is a whole program, as a user could have written it. Its constants say what a
Watch must make of it: see ``script.py``. ``python -m tests.watched [NAMES]`` runs them and prints a table.
"""
