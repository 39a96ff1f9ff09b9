"""In the place of the project's package: the same scripts without a Watch."""
