"""The record of a run: written atomically, and checked against bench/record/definition.py."""

SCHEMA_VERSION = 9
