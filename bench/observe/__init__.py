"""Experiments on accuracy and on mistakes, inside a worker: replicas compared, a run watched, a mistake made."""
