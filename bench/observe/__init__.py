"""What a training run is seen to do: which images its ranks drew, its gradients, its waits.

``Watch`` attaches to any training script; the harness watches its own runs with ``bench.training.observer.Observer``.
"""

from bench.observe.watch import Watch

__all__ = ["Watch"]
