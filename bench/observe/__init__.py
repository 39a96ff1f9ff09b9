"""Observations of a training run: the images that its ranks drew, its gradients, its waits.

``Watch`` attaches to any training script; this project's own runs use ``bench.training.observer.Observer``.
"""

from bench.observe.watch import Watch

__all__ = ["Watch"]
