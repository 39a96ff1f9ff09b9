"""Training scripts that have nothing to do with this project, right and wrong, each under a Watch.

``bench/mistakes/scripts`` contains them, with what a Watch must make of each (``script.py``).
``python -m tests.watched [NAMES]`` runs them and prints a table.
"""
