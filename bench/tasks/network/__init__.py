"""`bench network`: messages and collectives between the ranks, and matrix products, without training."""
