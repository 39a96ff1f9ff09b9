"""What a training run is seen to do: which images its ranks drew, its gradients, its waits, how far apart its replicas
are.

``Watch`` stands beside any training script; the harness stands beside its own runs with ``observer.Observer``.
"""

from bench.observe.watch import Watch

__all__ = ["Watch"]
