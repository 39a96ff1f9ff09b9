"""What is trained: models, data sets, and which process sees which images."""
