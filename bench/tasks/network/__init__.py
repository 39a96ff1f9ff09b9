"""`bench network`: latency, bandwidth and all-reduce between the ranks, without training."""
