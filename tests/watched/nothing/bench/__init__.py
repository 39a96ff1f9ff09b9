"""Replaces the project's package: the same scripts without a Watch."""
