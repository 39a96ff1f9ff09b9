"""Latency, bandwidth and all-reduce between the ranks, without a training: what ``bench network`` measures.

plan     which messages, how often, within how much time; what a rank is told
rank     what a rank does instead of training, and the record that rank 0 leaves
record   that record, read and typed: a kind of its own, which no table of runs and no pool takes
result   its figures: times, bandwidths, alpha and beta with their intervals; in tables and in words
figure   them drawn
"""
