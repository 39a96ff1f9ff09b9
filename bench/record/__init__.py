"""The record of a run: written whole or not at all, and checked against bench/record/definition.py."""

SCHEMA_VERSION = 9
