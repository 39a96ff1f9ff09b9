"""Every published number, as a pure function with a worked example. No imports but the standard library's.

Step times come as one list a rank, in seconds: ``[[rank 0's steps], [rank 1's steps], …]``.
"""

import math
import statistics


def slowest_rank(step_times: list[list[float]]) -> list[float]:
    """The time of each step: that of its slowest rank, in seconds.

    >>> slowest_rank([[1.0, 2.0], [1.5, 1.0]])
    [1.5, 2.0]
    """
    return [max(step) for step in zip(*step_times, strict=True)]


def throughput_images_per_s(step_times: list[list[float]], global_batch: int) -> float:
    """Images a second of ranks that step together: all images over the time of the slowest rank.

    Two ranks, two steps of 64 images; the slower rank needs 4 s for them:

    >>> throughput_images_per_s([[1.0, 2.0], [2.0, 2.0]], global_batch=64)
    32.0
    """
    steps = len(step_times[0])
    return global_batch * steps / max(sum(times) for times in step_times)


def independent_throughput_images_per_s(step_times: list[list[float]], global_batch: int) -> float:
    """Images a second of processes that never wait for each other: the sum of their own rates.

    Two processes of 32 images a step: one takes 1 s a step (32/s), the other 2 s (16/s).

    >>> independent_throughput_images_per_s([[1.0, 1.0], [2.0, 2.0]], global_batch=64)
    48.0
    """
    per_rank = global_batch / len(step_times)
    return sum(per_rank * len(times) / sum(times) for times in step_times)


def percentile(values: list[float], percent: float) -> float:
    """Linear interpolation between the closest ranks (numpy's default, Hyndman and Fan's type 7).

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
    2.5
    >>> percentile([5.0], 95)
    5.0
    """
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def scaling_efficiency(throughput: float, base_throughput: float, num_devices: int) -> float:
    """Throughput on N devices over N times the throughput on one (weak scaling: the batch per device is fixed).

    >>> scaling_efficiency(180.0, 100.0, 2)
    0.9
    """
    return throughput / (num_devices * base_throughput)


def gib(num_bytes: float) -> float:
    """Bytes to GiB (2**30 bytes).

    >>> gib(3 * 2**29)
    1.5
    """
    return num_bytes / 2**30


def log_ratio_interval(a: list[float], b: list[float], t_quantile: float) -> tuple[float, float, float]:
    """The ratio b/a of paired positive measurements, with an interval: (ratio, low, high).

    The mean of d = log(b) - log(a) over rounds, plus and minus t x its standard error, taken back by exp: Student's t
    on paired log-ratios. ``t_quantile`` is the two-sided quantile for len(a) - 1 degrees of freedom. Raises ValueError
    with fewer than two rounds: one round has no interval.

    >>> ratio, low, high = log_ratio_interval([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], t_quantile=4.303)
    >>> round(ratio, 6), round(low, 6), round(high, 6)
    (2.0, 2.0, 2.0)
    """
    d = [math.log(y / x) for x, y in zip(a, b, strict=True)]
    if len(d) < 2:
        raise ValueError("an interval needs at least two rounds")
    mean, half = statistics.fmean(d), t_quantile * statistics.stdev(d) / math.sqrt(len(d))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
