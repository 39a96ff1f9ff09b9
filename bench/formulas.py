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


def t_probability(t: float, df: int) -> float:
    """P(|T| <= t) of Student's t with df degrees of freedom: the finite sums for whole df, t >= 0.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 (odd df) and 26.7.4 (even df), with
    angle = arctan(t / sqrt(df)). The absolute error is that of the last digits of a float.

    >>> round(t_probability(12.706205, 1), 6), round(t_probability(2.364624, 7), 6), round(t_probability(1.0, 2), 6)
    (0.95, 0.95, 0.57735)
    """
    angle, odd = math.atan(t / math.sqrt(df)), df % 2
    square = math.cos(angle) ** 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for k in range(2 + odd, df + 1, 2):  # k - 2 is the power of the cosine in this term
        total, term = total + term, term * square * (k - 1) / k
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def t_quantile(df: int, confidence: float) -> float:
    """The two-sided quantile of Student's t: the t with P(|T| <= t) = confidence, by bisection of its angle.

    >>> round(t_quantile(1, 0.95), 3), round(t_quantile(7, 0.95), 3)
    (12.706, 2.365)
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # to the last bit: pi / 2**61 is below a float's resolution here
        angle = (low + high) / 2
        low, high = (angle, high) if t_probability(math.sqrt(df) * math.tan(angle), df) < confidence else (low, angle)
    return math.sqrt(df) * math.tan((low + high) / 2)


def signed_rank_counts(n: int) -> list[int]:
    """How many of the 2**n sign patterns give the signed-rank sum T+ = 0, 1, …, n(n+1)/2.

    The coefficients of the product of (1 + x**i), i = 1 … n: each rank is in the sum or not (Hollander, Wolfe and
    Chicken, Nonparametric Statistical Methods, 3rd ed., section 3.1).

    >>> signed_rank_counts(3)
    [1, 1, 1, 2, 1, 1, 1]
    """
    counts = [1]
    for rank in range(1, n + 1):
        without, with_rank = counts + [0] * rank, [0] * rank + counts
        counts = [x + y for x, y in zip(without, with_rank, strict=True)]
    return counts


def signed_rank_depth(n: int, confidence: float) -> tuple[int, float]:
    """(k, achieved confidence) of the exact signed-rank interval; k = 0 where n is too small for the confidence.

    k is the largest with 2 P(T+ <= k - 1) <= 1 - confidence, and 1 - 2 P(T+ <= k - 1) is what is achieved. The widest
    interval there is achieves 1 - 2**(1 - n): five rounds stop at 93.75 %, six give 96.9 %.

    >>> signed_rank_depth(5, 0.95), signed_rank_depth(6, 0.95)
    ((0, 1.0), (1, 0.96875))
    """
    depth, below = 0, 0
    for count in signed_rank_counts(n):
        if 2 * (below + count) / 2**n > 1 - confidence:
            break
        depth, below = depth + 1, below + count
    return depth, 1 - 2 * below / 2**n


def hodges_lehmann(d: list[float], depth: int) -> tuple[float, float | None, float | None]:
    """The pseudo-median of d with its signed-rank interval: (estimate, low, high).

    The median of the n(n+1)/2 Walsh averages (d_i + d_j)/2, i <= j, and the ``depth``-th of them from either end
    (Hodges and Lehmann 1963; Hollander, Wolfe and Chicken, sections 3.2 and 3.3). ``depth`` comes from
    signed_rank_depth; with 0 there is no interval.

    The Walsh averages of 1, 2, 4 are 1, 1.5, 2, 2.5, 3, 4:

    >>> hodges_lehmann([1.0, 2.0, 4.0], depth=1)
    (2.25, 1.0, 4.0)
    """
    walsh = sorted((x + y) / 2 for i, x in enumerate(d) for y in d[i:])
    estimate = statistics.median(walsh)
    return (estimate, walsh[depth - 1], walsh[-depth]) if depth else (estimate, None, None)
