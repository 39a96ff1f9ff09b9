"""Every published number, as a pure function with a worked example. Imports only the standard library.

Step times come as one list per rank, in seconds: ``[[rank 0's steps], [rank 1's steps], …]``.
"""

import math
import statistics

NORMAL = statistics.NormalDist()


def slowest_rank(step_times: list[list[float]]) -> list[float]:
    """The time of each step: that of its slowest rank, in seconds.

    >>> slowest_rank([[1.0, 2.0], [1.5, 1.0]])
    [1.5, 2.0]
    """
    return [max(step) for step in zip(*step_times, strict=True)]


def rank_imbalance_s(step_times: list[list[float]]) -> float:
    """The slowest rank's mean step minus the mean over ranks, in seconds.

    >>> rank_imbalance_s([[3.0, 3.0], [2.0, 2.0]])
    0.5
    """
    means = [statistics.fmean(times) for times in step_times]
    return max(means) - statistics.fmean(means)


def throughput_per_s(step_times: list[list[float]], global_batch: int) -> float:
    """Examples per second of ranks that step together: all examples over the time of the slowest rank.

    Two ranks, two steps of 64 examples; the slower rank needs 4 s for them:

    >>> throughput_per_s([[1.0, 2.0], [2.0, 2.0]], global_batch=64)
    32.0
    """
    steps = len(step_times[0])
    return global_batch * steps / max(sum(times) for times in step_times)


def independent_throughput_per_s(step_times: list[list[float]], global_batch: int) -> float:
    """Examples per second of processes that never wait for each other: the sum of their own rates.

    Two processes of 32 examples per step: one takes 1 s per step (32/s), the other 2 s (16/s).

    >>> independent_throughput_per_s([[1.0, 1.0], [2.0, 2.0]], global_batch=64)
    48.0
    """
    per_rank = global_batch / len(step_times)
    return sum(per_rank * len(times) / sum(times) for times in step_times)


def median_steps(step_times: list[list[float]], independent: bool = False) -> list[list[float]]:
    """One step per rank, in seconds: every step replaced by the median one, for the throughput formulas.

    The median of the steps that the ranks take together, each as long as its slowest rank; independent: of each rank's
    own. A single disturbed step changes the mean of ten, but not their median.

    >>> median_steps([[1.0, 1.0, 9.0], [1.5, 1.0, 1.0]]), median_steps([[1.0, 2.0, 9.0], [3.0, 3.0, 4.0]], True)
    ([[1.5]], [[2.0], [3.0]])
    """
    if independent:
        return [[percentile(times, 50)] for times in step_times]
    return [[percentile(slowest_rank(step_times), 50)]]


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


def scaled_lr(lr: float, global_batch: int, lr_batch: int | None) -> float:
    """The learning rate for a global batch when ``lr`` was chosen for ``lr_batch`` images: the linear scaling rule.

    A batch k times as large takes a k times larger step: lr x global_batch / lr_batch (Goyal et al. 2017, "Accurate,
    Large Minibatch SGD", https://arxiv.org/abs/1706.02677, section 2.1, which starts it with a warm-up). With
    lr_batch None the learning rate is left as it is.

    >>> scaled_lr(0.1, global_batch=1024, lr_batch=256), scaled_lr(0.1, global_batch=1024, lr_batch=None)
    (0.4, 0.1)
    """
    return lr if lr_batch is None else lr * global_batch / lr_batch


def adasum(vectors: list[list[float]]) -> list[float]:
    """Adasum of one flattened tensor per rank, in the order of ranks: neither sum nor mean.

    Of two, a and b: (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b, which removes from each half of the other's component in
    its direction; of more, first of ranks 0 and 1, of 2 and 3, …, then of these results, and so on (Maleki et al. 2020,
    "Scaling Distributed Training with Adaptive Summation", https://arxiv.org/abs/2006.02924). A zero changes nothing.
    Raises ValueError if their number is not a power of two.

    Equal ones give the mean, orthogonal ones the sum; of (2, 0) and (1, 1) the first keeps 3/4, the other half:

    >>> adasum([[2.0, 0.0], [2.0, 0.0]]), adasum([[2.0, 0.0], [0.0, 2.0]]), adasum([[2.0, 0.0], [1.0, 1.0]])
    ([2.0, 0.0], [2.0, 2.0], [2.0, 0.5])
    """
    if len(vectors) & (len(vectors) - 1) or not vectors:
        raise ValueError(f"{len(vectors)} vectors cannot be combined in pairs")
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    a, b = adasum(vectors[:half]), adasum(vectors[half:])
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    keep_a, keep_b = (1 - dot / (2 * square) if (square := sum(x * x for x in each)) else 1.0 for each in (a, b))
    return [keep_a * x + keep_b * y for x, y in zip(a, b, strict=True)]


def gpt_parameters(layers: int, width: int, context: int, vocabulary: int) -> int:
    """The parameters of MODEL=gpt (bench/workload/models/gpt.py): a block has 12 width^2 weights, 9 width biases and
    two norms of 2 width; the rest are token and position embeddings, the last norm and the output layer.

    >>> gpt_parameters(layers=12, width=768, context=1024, vocabulary=50257) - 50257 * 768    # GPT-2 ties two layers
    124439808
    """
    return layers * (12 * width**2 + 13 * width) + (2 * vocabulary + context + 2) * width


def joules_per_example(energies_j: list[float], examples: int) -> float:
    """Energy per example, in joules: that of all boards during the timed steps, over the examples of these steps.

    Two GPUs that take 300 J each, in 10 steps of 64 examples:

    >>> joules_per_example([300.0, 300.0], examples=640)
    0.9375
    """
    return sum(energies_j) / examples


def model_flops_per_s(examples_per_s: float, flops_per_example: float, num_devices: int) -> float:
    """Operations per second of one device, for its share of the examples. Recomputation does not count.

    >>> model_flops_per_s(1000.0, 24.3e9, num_devices=2)  # ResNet-50 at 224 pixels
    12150000000000.0
    """
    return examples_per_s * flops_per_example / num_devices


def model_flops_utilization(model_flops_per_s: float, peak_flops_per_s: float) -> float:
    """MFU: the model's operations over the device's peak (Chowdhery et al. 2022, "PaLM", appendix B). With those of the
    hardware, which include recomputed activations, it is HFU.

    >>> round(model_flops_utilization(21.38e12, peak_flops_per_s=312e12), 4)
    0.0685
    """
    return model_flops_per_s / peak_flops_per_s


def scaling_efficiency(throughput: float, base_throughput: float, num_devices: int) -> float:
    """Throughput on N devices over N times the throughput on one (weak scaling: the batch per device is fixed).

    >>> scaling_efficiency(180.0, 100.0, 2)
    0.9
    """
    return throughput / (num_devices * base_throughput)


def exposed_comm_s(step_s: float, no_sync_step_s: float) -> float:
    """Seconds that communication adds to a step: a step minus one without exchange.

    It excludes communication hidden under computation, and includes the cores that communication uses. With noise it
    may be below zero.

    >>> round(exposed_comm_s(0.32, 0.25), 3)
    0.07
    """
    return step_s - no_sync_step_s


def deviation(values: list[float]) -> float:
    """The standard deviation of a sample, exactly 0 where all values are equal. ``statistics.stdev`` computes in
    fractions, which takes much longer.

    >>> deviation([1.0, 2.0, 3.0]), deviation([0.1, 0.1, 0.1])
    (1.0, 0.0)
    """
    apart = [value - values[0] for value in values]
    mean = statistics.fmean(apart)
    return math.sqrt(math.fsum((each - mean) ** 2 for each in apart) / (len(values) - 1))


def mean_interval(values: list[float], t_quantile: float) -> tuple[float, float, float]:
    """The mean with Student's interval: (mean, low, high). t_quantile: two-sided, for len(values) - 1 degrees.

    Raises ValueError with fewer than two values.

    >>> [round(x, 2) for x in mean_interval([1.0, 2.0, 3.0], t_quantile=4.303)]
    [2.0, -0.48, 4.48]
    """
    if len(values) < 2:
        raise ValueError("an interval needs at least two values")
    mean, half = statistics.fmean(values), t_quantile * deviation(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def time_to_accuracy_s(rows: list[dict], target: float, metric: str = "top1", smaller: bool = False) -> float | None:
    """Seconds from the first step to the end of the first validation with the metric at or above target, or with
    ``smaller`` at or below it; None: never.

    rows: one per epoch, with elapsed_s and the metric. Training and validation count, as in MLPerf Training.

    >>> time_to_accuracy_s([{"elapsed_s": 9.0, "top1": 0.96}, {"elapsed_s": 18.5, "top1": 0.981}], target=0.98)
    18.5
    """
    sign = -1 if smaller else 1
    return next(
        (row["elapsed_s"] for row in rows if row.get(metric) is not None and sign * row[metric] >= sign * target), None
    )


def data_wait_share(data_wait_s: list[float], step_time_s: list[float]) -> float:
    """The share of a rank's step time spent waiting for its loader.

    >>> data_wait_share([0.25, 0.0, 0.5], [1.0, 0.75, 1.25])
    0.25
    """
    return sum(data_wait_s) / sum(step_time_s)


def log_ratio_interval(a: list[float], b: list[float], t_quantile: float) -> tuple[float, float, float]:
    """The ratio b/a of paired positive measurements, with an interval: (ratio, low, high).

    The mean of d = log(b) - log(a) over rounds, plus and minus t x its standard error, transformed back by exp:
    Student's t on paired log-ratios. ``t_quantile`` is the two-sided quantile for len(a) - 1 degrees of freedom. Raises
    ValueError with fewer than two rounds: one round has no interval.

    >>> ratio, low, high = log_ratio_interval([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], t_quantile=4.303)
    >>> round(ratio, 6), round(low, 6), round(high, 6)
    (2.0, 2.0, 2.0)
    """
    d = [math.log(y / x) for x, y in zip(a, b, strict=True)]
    if len(d) < 2:
        raise ValueError("an interval needs at least two rounds")
    mean, half = statistics.fmean(d), t_quantile * deviation(d) / math.sqrt(len(d))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def t_probability(t: float, df: float) -> float:
    """P(|T| <= t) of Student's t with df degrees of freedom, any df > 0, t >= 0.

    >>> round(t_probability(12.706205, 1), 6), round(t_probability(2.364624, 7), 6), round(t_probability(1.0, 2), 6)
    (0.95, 0.95, 0.57735)
    """
    from scipy.special import stdtr  # takes half a second, so it is imported here

    return 2 * float(stdtr(df, t)) - 1


def t_quantile(df: float, confidence: float) -> float:
    """The two-sided quantile of Student's t for any df > 0: the t with P(|T| <= t) = confidence.

    >>> round(t_quantile(1, 0.95), 3), round(t_quantile(7, 0.95), 3), round(t_quantile(7.5, 0.95), 3)
    (12.706, 2.365, 2.333)
    """
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + confidence) / 2))


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
    """(k, achieved confidence) of the exact signed-rank interval; k = 0 if n is too small for the confidence.

    k is the largest with 2 P(T+ <= k - 1) <= 1 - confidence, and 1 - 2 P(T+ <= k - 1) is the achieved confidence. The
    widest possible interval achieves 1 - 2**(1 - n): five rounds stop at 93.75 %, six give 96.9 %.

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


def welch_df(square_error_a: float, square_error_b: float, n_a: int, n_b: int) -> float:
    """Degrees of freedom of a difference of two means whose variances need not be equal.

    square_error: s**2 / n of each side, not both 0. (A + B)**2 / (A**2 / (n_a - 1) + B**2 / (n_b - 1)), Welch,
    Biometrika 34 (1947), 28-35, in the form of Satterthwaite (1946). It is between the smaller n - 1 and
    n_a + n_b - 2.

    Equal errors from five values each; and the whole error from one side of five values:

    >>> welch_df(0.1, 0.1, 5, 5), welch_df(0.1, 0.0, 5, 9)
    (8.0, 4.0)
    """
    parts = square_error_a**2 / (n_a - 1) + square_error_b**2 / (n_b - 1)
    return (square_error_a + square_error_b) ** 2 / parts


def unpaired_log_ratio_interval(a: list[float], b: list[float], confidence: float) -> tuple[float, float, float]:
    """The ratio b/a of positive measurements that share no rounds, with an interval: (ratio, low, high).

    Welch's t on logarithms: the difference of the means of log(b) and log(a), plus and minus the t quantile for
    ``welch_df`` times sqrt(s_a**2 / n_a + s_b**2 / n_b), taken back by exp. The two sides may differ in number and in
    noise. Raises ValueError with fewer than two values on a side.

    log(a) is -0.1, 0, 0.1 and log(b) is log(2) + the same: each s**2 / n is 0.01 / 3, so 4 degrees of freedom, and the
    half-width is 2.776 x sqrt(0.02 / 3) = 0.2267:

    >>> a = [math.exp(x) for x in (-0.1, 0.0, 0.1)]
    >>> ratio, low, high = unpaired_log_ratio_interval(a, [2 * x for x in a], 0.95)
    >>> round(ratio, 6), round(math.log(high / ratio), 4), round(math.log(ratio / low), 4)
    (2.0, 0.2267, 0.2267)
    """
    if min(len(a), len(b)) < 2:
        raise ValueError("an interval needs at least two values on each side")
    logs = [[math.log(x) for x in side] for side in (a, b)]
    difference = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    squares = [statistics.variance(side) / len(side) for side in logs]
    half = 0.0
    if sum(squares) > 0:
        half = t_quantile(welch_df(*squares, len(a), len(b)), confidence) * math.sqrt(sum(squares))
    return math.exp(difference), math.exp(difference - half), math.exp(difference + half)


def rank_sum_counts(n: int, m: int) -> list[int]:
    """How many of the C(n + m, n) orders of n values among m others give the Mann-Whitney count U = 0, 1, …, n m.

    The coefficients of the product of (1 - x**(m + i)) / (1 - x**i), i = 1 … n (Mann and Whitney 1947; Hollander,
    Wolfe and Chicken, section 4.1).

    >>> rank_sum_counts(2, 2)
    [1, 1, 2, 1, 1]
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts


def rank_sum_depth(n: int, m: int, confidence: float) -> tuple[int, float]:
    """(k, achieved confidence) of the exact rank-sum interval; k = 0 if n and m are too small for the confidence.

    k is the largest with 2 P(U <= k - 1) <= 1 - confidence, as in ``signed_rank_depth``. Three values against three
    stop at 90 %, four against four reach 97.1 %.

    >>> rank_sum_depth(3, 3, 0.95), [round(x, 4) for x in rank_sum_depth(4, 4, 0.95)]
    ((0, 1.0), [1, 0.9714])
    """
    depth, below, orders = 0, 0, math.comb(n + m, n)
    for count in rank_sum_counts(n, m):
        if 2 * (below + count) / orders > 1 - confidence:
            break
        depth, below = depth + 1, below + count
    return depth, 1 - 2 * below / orders


def hodges_lehmann_shift(a: list[float], b: list[float], depth: int) -> tuple[float, float | None, float | None]:
    """By how much b exceeds a, with its rank-sum interval: (estimate, low, high).

    The median of the n m differences b_j - a_i, and the ``depth``-th of them from either end (Hodges and Lehmann 1963;
    Hollander, Wolfe and Chicken, sections 4.2 and 4.3). ``depth`` comes from rank_sum_depth; with 0 no interval.

    The differences are 4 6 1 3:

    >>> hodges_lehmann_shift([1.0, 4.0], [5.0, 7.0], depth=1)
    (3.5, 1.0, 6.0)
    """
    differences = sorted(y - x for x in a for y in b)
    estimate = statistics.median(differences)
    return (estimate, differences[depth - 1], differences[-depth]) if depth else (estimate, None, None)


def confidence_per_look(confidence: float, looks: int) -> float:
    """The confidence of each of ``looks`` intervals, so that together they have ``confidence``.

    Each look may miss with probability (1 - confidence) / looks: together they miss at most as often as the sum
    (Bonferroni's inequality), whenever and for whatever reason one stops after a look. These are repeated confidence
    intervals (Jennison and Turnbull, Journal of the Royal Statistical Society B 51 (1989), 305-361), with the
    simplest choice of their level. It is conservative, since looks at growing data agree more often than by chance.

    >>> round(confidence_per_look(0.95, 5), 6), confidence_per_look(0.95, 1)
    (0.99, 0.95)
    """
    return 1 - (1 - confidence) / looks if looks > 1 else confidence


def holm(p: list[float]) -> list[float]:
    """p values adjusted by Holm's step-down method, in the given order.

    The i-th smallest of m, counted from 1, is multiplied by m - i + 1, and none is left below one before it or above 1
    (Holm, Scandinavian Journal of Statistics 6 (1979), 65-70). The chance that any of the true null hypotheses gets at
    most 5 % is at most 5 %, however the tests depend on each other.

    The smallest times 3, the next times 2, the last unchanged; and two whose order the factors would reverse:

    >>> [round(x, 6) for x in holm([0.02, 0.3, 0.01])], holm([0.25, 0.25, 0.5]), holm([0.03125, 0.0234375])
    ([0.04, 0.3, 0.03], [0.75, 0.75, 0.75], [0.046875, 0.046875])
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = largest
    return adjusted


def replica_distance(squares: float, world_size: int) -> float:
    """How far apart N replicas are: the root mean square of the distances over all pairs of ranks.

    squares: the sum over ranks of ||w_r - mean of w||**2. The squares of the N (N - 1) / 2 pairs sum to N times that
    (Huygens and Leibniz), so the mean over pairs is 2 / (N - 1) times it. One replica has no pair, and distance 0.

    Two replicas at 0 and 6 lie 3 from their mean; three at 0, 0 and 6 have distances 0, 6 and 6:

    >>> replica_distance(3**2 + 3**2, 2), replica_distance(2**2 + 2**2 + 4**2, 3) == math.sqrt((0 + 36 + 36) / 3)
    (6.0, True)
    """
    return math.sqrt(2 * squares / (world_size - 1)) if world_size > 1 else 0.0


def replica_distance_factors(
    learning_rates: list[float], optimizer: str, weight_decay: float, momentum: float, nesterov: bool
) -> list[float] | None:
    """The distance between replicas over its initial value, before the first step and after each.

    learning_rates: of every step taken. optimizer: "sgd", "adam" or "adamw". None where there is no closed form.

    All replicas get the same mean gradient g, whatever their own weights are, so it cancels in their difference d
    (clipped or not: it is the same g on all ranks). The rest of torch.optim's update rules:

    - no decay: nothing, for every optimizer; d is constant;
    - sgd, where the decay is added to the gradient: v <- momentum v + decay d, d <- d - lr v, from v = 0; with nesterov
      d <- d - lr (decay d + momentum v). Without momentum that is d <- (1 - lr decay) d;
    - adamw, where the decay is separate from the gradient (Loshchilov and Hutter 2019,
    https://arxiv.org/abs/1711.05101, algorithm 2): d <- (1 - lr decay) d; - adam with decay divides g + decay w by a
    root of its own squares: g no longer drops out.

    >>> replica_distance_factors([0.1, 0.1], "sgd", 0.0, 0.9, False)
    [1.0, 1.0, 1.0]
    >>> [round(x, 6) for x in replica_distance_factors([0.1, 0.2], "sgd", 0.5, 0.0, False)]    # 0.95, then x 0.9
    [1.0, 0.95, 0.855]

    With momentum 1/2 the velocity is 0.5, then 0.25 + 0.475 = 0.725:

    >>> [round(x, 6) for x in replica_distance_factors([0.1, 0.1], "sgd", 0.5, 0.5, False)]
    [1.0, 0.95, 0.8775]
    """
    if weight_decay and optimizer == "adam":
        return None
    coupled = optimizer == "sgd"
    distance, velocity, factors = 1.0, 0.0, [1.0]
    for lr in learning_rates:
        pull = weight_decay * distance
        velocity = momentum * velocity + pull if coupled else pull
        distance -= lr * (pull + momentum * velocity if coupled and nesterov else velocity)
        factors.append(abs(distance))
    return factors


def union(intervals: list[tuple[float, float]], gap: float = 0.0) -> list[tuple[float, float]]:
    """The union as disjoint intervals, with gaps of up to ``gap`` closed, without empty ones.

    >>> union([(3, 4), (0, 2), (1, 3), (6, 6)]), union([(0, 1), (1.4, 2), (3, 4)], gap=0.5)
    ([(0, 4)], [(0, 2), (3, 4)])
    """
    merged = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start - merged[-1][1] <= gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def others_cpu_share(machine_cpu_s: float, own_cpu_s: list[float], cores: int, wall_s: float) -> float:
    """The share of a machine's CPU that other processes used, from 0 to 1.

    machine_cpu_s: CPU seconds of all processes in ``wall_s`` seconds on ``cores`` cores. own_cpu_s: those of each rank.
    A launcher's own, which sleeps, counts as others'.

    >>> others_cpu_share(18.0, [5.0, 5.0], cores=2, wall_s=10.0)
    0.4
    """
    return max(0.0, machine_cpu_s - sum(own_cpu_s)) / (cores * wall_s)


def algorithm_bandwidth(nbytes: float, seconds: float) -> float:
    """Bytes per second of a message as its sender sees it: its bytes over the time, NCCL's "algbw".

    As in nccl-tests (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): for an all-reduce the bytes
    are those of one rank's tensor.

    >>> algorithm_bandwidth(100e6, 0.5)
    200000000.0
    """
    return nbytes / seconds


def bus_bandwidth(nbytes: float, seconds: float, ranks: int, operation: str = "all_reduce") -> float:
    """Bytes per second that an operation moves over each link, to compare with the link's own rate: NCCL's "busbw".

    The algorithm bandwidth times the share of the tensor that each of n ranks must send and receive, whatever the
    algorithm: 2 (n - 1) / n for an all-reduce, (n - 1) / n for an all-gather and a reduce-scatter, of which ``nbytes``
    is the whole tensor, 1 for a message (nccl-tests, doc/PERFORMANCE.md). It does not depend on the number of ranks if
    the links are the limit.

    >>> bus_bandwidth(100e6, 0.5, ranks=4), bus_bandwidth(100e6, 0.5, ranks=2)
    (300000000.0, 200000000.0)
    >>> [bus_bandwidth(100e6, 0.5, 4, name) for name in ("all_gather", "reduce_scatter", "ping_pong")]
    [150000000.0, 150000000.0, 200000000.0]
    """
    passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}.get(operation)
    return algorithm_bandwidth(nbytes, seconds) * (passes * (ranks - 1) / ranks if passes else 1)


def matmul_flops_per_s(n: int, seconds: float) -> float:
    """FLOP/s of a product of two n x n matrices: 2 n^3 operations, a multiplication and an addition for each term.

    >>> matmul_flops_per_s(1000, 0.5)
    4000000000.0
    """
    return 2 * n**3 / seconds


def ring_all_reduce_s(nbytes: float, ranks: int, alpha_s: float, beta_s: float) -> float:
    """Seconds of a ring all-reduce by the alpha-beta model of a link: t = 2 (n - 1) alpha + 2 (n - 1) / n beta s.

    alpha_s: seconds per message, whatever its size; beta_s: seconds per byte. Reduce-scatter and all-gather take n - 1
    messages of s / n bytes each, one after the other (Thakur, Rabenseifner and Gropp, International Journal of High
    Performance Computing Applications 19 (2005), 49-66; Patarasuk and Yuan, Journal of Parallel and Distributed
    Computing 69 (2009), 117-124). The arithmetic of the sum is left out.

    Four ranks, 6 messages of 1 ms and of 1 s each for a quarter of 4 MB at 1 MB/s:

    >>> round(ring_all_reduce_s(4e6, ranks=4, alpha_s=1e-3, beta_s=1e-6), 6)
    6.006
    """
    return 2 * (ranks - 1) * alpha_s + 2 * (ranks - 1) / ranks * beta_s * nbytes


def received_bytes(nbytes: float, ranks: int, all_reduces: float = 0, gathers: float = 0, scatters: float = 0) -> float:
    """Bytes that each rank must receive in a step for all-reduces, all-gathers and reduce-scatters of ``nbytes`` each.

    A rank has 1/n of a gathered tensor and must receive the rest; the sum of its part needs that of every other rank;
    an all-reduce is a reduce-scatter and an all-gather (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054,
    section 7; Thakur, Rabenseifner and Gropp as above). No algorithm needs less.

    A model of 100 MB on four ranks: ddp, torch's zero1 (which also sends the weights), fsdp:

    >>> received_bytes(100, 4, all_reduces=1), received_bytes(100, 4, all_reduces=1, gathers=1)
    (150.0, 225.0)
    >>> received_bytes(100, 4, gathers=2, scatters=1)
    225.0
    >>> received_bytes(100, 4, gathers=1, scatters=1)  # RESHARD_AFTER_FORWARD=0
    150.0
    >>> received_bytes(100, 4, all_reduces=1 / 8)  # local, every 8 steps
    18.75
    """
    return nbytes * (ranks - 1) / ranks * (2 * all_reduces + gathers + scatters)


def sharded_bytes(parameters: int, ranks: int, shards: tuple[str, ...], state_numbers: int = 2) -> dict[str, float]:
    """Bytes that a rank holds between two steps in float32, by kind, if some kinds are sharded evenly.

    state_numbers: optimizer values per parameter: Adam 2, SGD with momentum 1. shards: names of kinds, each divided by
    the ranks. Under Adam 16 bytes per parameter without shards, as many as Rajbhandari et al. 2020 (section 3.1) count
    for mixed precision: 2 + 2 + 12.

    A million parameters on two ranks, in MB: DDP, the optimizer's state sharded, all three sharded:

    >>> state = ("optimizer state",)
    >>> ways = ((), state, ("weights", "gradients", *state))
    >>> [sum(sharded_bytes(10**6, 2, shards).values()) / 1e6 for shards in ways]
    [16.0, 12.0, 8.0]
    """
    whole = {"weights": 4 * parameters, "gradients": 4 * parameters, "optimizer state": 4 * state_numbers * parameters}
    return {kind: size / ranks if kind in shards else float(size) for kind, size in whole.items()}


def ring_gather_s(nbytes: float, ranks: int, alpha_s: float, beta_s: float) -> float:
    """Seconds of a ring all-gather or reduce-scatter of nbytes in total: (n - 1) alpha + (n - 1) / n beta s, half of an
    all-reduce (``ring_all_reduce_s``, with its sources).

    >>> round(ring_gather_s(4e6, ranks=4, alpha_s=1e-3, beta_s=1e-6), 6)
    3.003
    """
    return ring_all_reduce_s(nbytes, ranks, alpha_s, beta_s) / 2


def ring_over_nodes(
    ranks: int, per_node: int, inside: tuple[float, float], between: tuple[float, float]
) -> tuple[float, float]:
    """alpha and beta of one link such that a ring of ranks over it takes as long as one over nodes of per_node ranks.

    inside, between: (alpha s, beta s per byte) of the links within a node and of the one link that each node has. One
    ring goes through all ranks and leaves each of m nodes once. In 2 (n - 1) rounds of an all-reduce a part is sent
    over 2 (m - 1) links between nodes and 2 (n - m) within them; every link carries all rounds, so the slowest one sets
    the rate. So NCCL estimates its rings over more than two nodes (src/graph/tuning.cc at 01afd20: nInterSteps,
    speedInter).

    Two nodes of four, 1 s inside and 15 s between: of 7 hops one is between, as seven of 3 s; then one node alone:

    >>> ring_over_nodes(8, 4, inside=(1.0, 0.1), between=(15.0, 2.0)), ring_over_nodes(4, 4, (1.0, 0.1), (15.0, 2.0))
    ((3.0, 2.0), (1.0, 0.1))
    """
    nodes = math.ceil(ranks / per_node)
    if nodes == 1:
        return inside
    alpha_s = ((nodes - 1) * between[0] + (ranks - nodes) * inside[0]) / (ranks - 1)
    return alpha_s, max(inside[1], between[1]) if per_node > 1 else between[1]


def gloo_idle_s(nbytes: float, ranks: int, beta_s: float, most: float = math.inf) -> float:
    """Seconds that a ring collective over Gloo takes beyond its bytes: one piece, during which a link is idle.

    Each of n parts is sent in two pieces or more, none larger than ``most``, and two pieces are on their way at a time
    (gloo/allgather.cc; gloo/allreduce.cc, whose largest piece is 1 MiB). A piece is sent when the receiver has
    announced that it waits; on two ranks, where both neighbours are the same rank, that message queues behind the data
    sent to it. So links are idle for one piece: of two ranks' all-gather a third of the time. The same piece is assumed
    for more ranks; `python -m tests.validation.forecast` shows how far that holds.

    All-gather of 4 MB at 1 MB/s, with ``ring_gather_s`` of 2 s on two ranks and 3 s on four:

    >>> gloo_idle_s(4e6, ranks=2, beta_s=1e-6), gloo_idle_s(4e6, ranks=4, beta_s=1e-6)
    (1.0, 0.5)
    >>> gloo_idle_s(400e6, ranks=2, beta_s=1e-6, most=2**20)  # an all-reduce of hundreds of pieces
    1.048576
    """
    return beta_s * min(nbytes / (2 * ranks), most) if ranks > 1 else 0.0


def tree_broadcast_s(nbytes: float, ranks: int, alpha_s: float, beta_s: float) -> float:
    """Seconds of a broadcast by a binomial tree: ceil(log2 n) (alpha + beta s). In each round every rank that has the
    message sends all of it to one that does not have it (Thakur, Rabenseifner and Gropp as above, section 4.1).

    Five ranks need three rounds:

    >>> round(tree_broadcast_s(2e6, ranks=5, alpha_s=1e-3, beta_s=1e-6), 6)
    6.003
    """
    return math.ceil(math.log2(ranks)) * (alpha_s + beta_s * nbytes)


def tcp_payload_share(mtu: int = 1500) -> float:
    """The share of payload in a link's bytes in one direction, if the same amount goes in the other one, as in a ring.
    Ethernet's header takes 14 of each packet, those of IPv4 and TCP with its time stamp 52 (RFC 894, 791, 9293, 7323).
    Every second received packet is acknowledged, with headers only (RFC 5681, section 4.2); a card that puts packets
    together sends fewer, and then the share is up to 2 % larger.

    >>> round(tcp_payload_share(), 4)
    0.936
    """
    ethernet, headers = 14, 20 + 20 + 12
    return (mtu - headers) / (mtu + ethernet + (ethernet + headers) / 2)


def power_sgd_bytes(shape: tuple[int, ...], rank: int = 1) -> int:
    """Bytes that PowerSGD sends of a float32 gradient: for a matrix n x m two of rank columns, (n + m) x rank numbers,
    if that is less than half of n m; else all (Vogels, Karimireddy and Jaggi 2019, https://arxiv.org/abs/1905.13727,
    algorithm 1; the half is torch's ``min_compression_rate``).

    >>> power_sgd_bytes((64, 3, 7, 7)), power_sgd_bytes((64,)), power_sgd_bytes((2, 3))
    (844, 256, 24)
    """
    n, m = shape[0] if shape else 1, math.prod(shape[1:])
    small = len(shape) > 1 and 2 * (n + m) * rank < n * m
    return 4 * ((n + m) * rank if small else n * m)


def slowest_shares(count: int, ranks: int) -> list[float]:
    """How often each of ``count`` equally likely sorted times is the slowest of all ranks' draws: (i/c)^n -
    ((i-1)/c)^n.

    All n draws are among the i smallest with probability (i/c)^n; the largest is the i-th if they are not all among the
    i - 1 smallest: the distribution of the maximum (David and Nagaraja, Order Statistics, 3rd ed., section 2.1).

    >>> slowest_shares(2, 1), slowest_shares(2, 3)
    ([0.5, 0.5], [0.125, 0.875])
    """
    return [(i / count) ** ranks - ((i - 1) / count) ** ranks for i in range(1, count + 1)]


def largest_normal(count: int) -> float:
    """The expected largest of ``count`` standard normal draws (Blom 1958, Statistical Estimates and Transformed Beta
    Variables). It grows as sqrt(2 ln count).

    >>> [round(largest_normal(count), 2) for count in (1, 2, 8, 64)]
    [0.0, 0.59, 1.43, 2.34]
    """
    return NORMAL.inv_cdf((count - 0.375) / (count + 0.25))


def delayed_log_density(x: float, mean: float, sd: float) -> float:
    """Log density of a normal error around 0 plus an exponential delay of that mean (exponentially modified Gaussian);
    with mean 0 of the error alone.

    >>> round(delayed_log_density(1.0, mean=1e-9, sd=1.0) - delayed_log_density(1.0, 0.0, 1.0), 6)
    0.0
    >>> round(delayed_log_density(3.0, mean=1.0, sd=1e-3), 5)  # the delay alone: -x
    -3.0
    """
    error = -x * x / (2 * sd * sd) - math.log(sd * math.sqrt(2 * math.pi))
    if not mean:
        return error
    share = sd / mean
    z = x / sd - share
    if z < -30:  # the tail of the normal distribution: its cumulative is its density over -z
        return error + math.log(share / -z)
    return share * share / 2 - x / mean - math.log(mean) + math.log(math.erfc(-z / math.sqrt(2)) / 2)


def ring_alpha_beta(constant_s: float, per_byte_s: float, ranks: int) -> tuple[float, float]:
    """alpha and beta of a ring all-reduce whose times lie on constant_s + per_byte_s x bytes: the inverse of
    ``ring_all_reduce_s``. Raises ZeroDivisionError for one rank, which sends nothing.

    >>> [round(x, 9) for x in ring_alpha_beta(0.006, 1.5e-6, ranks=4)]
    [0.001, 1e-06]
    """
    return constant_s / (2 * (ranks - 1)), per_byte_s * ranks / (2 * (ranks - 1))


def fit_line(sizes: list[float], times: list[float], typical: list[float]) -> tuple[float, float]:
    """Constant and slope of times over sizes, by least squares of the errors relative to ``typical``.

    Minimises the sum of ((a + b s - t) / typical)**2: with sizes over five decades the largest messages dominate the
    absolute errors, and the constant would be undetermined. With ``typical`` the same for several sets of times, the
    line of their mean is the mean of their lines. Raises ZeroDivisionError with fewer than two different sizes.

    Four messages of 3 s each and 2 s per byte:

    >>> times = [5.0, 23.0, 203.0, 2003.0]
    >>> [round(x, 9) for x in fit_line([1.0, 10.0, 100.0, 1000.0], times, typical=times)]
    [3.0, 2.0]
    """
    w = [1 / (t * t) for t in typical]
    w1, ws = sum(w), sum(wi * s for wi, s in zip(w, sizes, strict=True))
    middle = ws / w1
    spread = sum(wi * (s - middle) ** 2 for wi, s in zip(w, sizes, strict=True))
    slope = sum(wi * (s - middle) * t for wi, s, t in zip(w, sizes, times, strict=True)) / spread
    return sum(wi * t for wi, t in zip(w, times, strict=True)) / w1 - slope * middle, slope


def median_depth(n: int, confidence: float) -> int:
    """k, so that the k-th value from either end bounds the median of n values' distribution; 0 if n is too small.

    k is the largest with 2 P(B <= k - 1) <= 1 - confidence for a binomial B of n fair coins: the sign test inverted
    (Hollander, Wolfe and Chicken, section 3.6). It assumes no distribution. Five values are too few for 95 %; of six
    the extremes are the interval, of ten the second from either end.

    >>> [median_depth(n, 0.95) for n in (5, 6, 10, 20)]
    [0, 1, 2, 6]
    """
    depth, below = 0, 0
    for k in range(n):
        below += math.comb(n, k)
        if 2 * below / 2**n > 1 - confidence:
            break
        depth += 1
    return depth


def median_interval(values: list[float], confidence: float) -> tuple[float, float | None, float | None]:
    """The median with its exact interval: (median, low, high); None with too few values (``median_depth``).

    >>> median_interval([1.0, 9.0, 2.0, 3.0, 5.0, 4.0], 0.95), median_interval([1.0, 2.0], 0.95)
    ((3.5, 1.0, 9.0), (1.5, None, None))
    """
    ordered, depth = sorted(values), median_depth(len(values), confidence)
    middle = statistics.median(ordered)
    return (middle, ordered[depth - 1], ordered[-depth]) if depth else (middle, None, None)
