"""How long should waiting OpenMP threads spin before they give up their core? Idle, and beside busy loops.

    python -m tests.validation.wait_policy live --policies GOMP_SPINCOUNT=300000 GOMP_SPINCOUNT=30000 OMP_WAIT_POLICY=passive
    python -m tests.validation.wait_policy live --load 2
    python -m tests.validation.wait_policy runs --mode ddp --gpus 2

live: one process with two threads per policy. In every round all are started, and train ResNet-18 on 32 images of 16 px in
turns of a few steps, so that what slows the machine for seconds cancels. runs: fresh `bench run`s in interleaved rounds,
for the other modes. The first policy is the base of the ratios; libgomp's own default is GOMP_SPINCOUNT=300000.
--preload: another OpenMP runtime, such as libiomp5.so (its default is KMP_BLOCKTIME=200).
"""  # noqa: E501

import argparse
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.analysis.stats import compare_rounds
from bench.studies.rounds import order

POLICIES = ["GOMP_SPINCOUNT=300000", "GOMP_SPINCOUNT=30000", "GOMP_SPINCOUNT=1000", "OMP_WAIT_POLICY=passive"]
WORKLOAD = {"model": "resnet18", "data": "digits", "image-size": 16, "augment": 0, "baselines": 0, "device": "cpu",
            "batch": 32, "steps": 10}  # fmt: skip
TURNS, STEPS, PAUSE_S = 5, 4, 0.03
BUSY = [sys.executable, "-c", "while True: pass"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("how", choices=["live", "runs", "worker"])
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--mode", default="ddp")
    parser.add_argument("--gpus", default="2")
    parser.add_argument("--preload")
    asked = parser.parse_args()
    if asked.how == "worker":
        return worker()
    what = f"{asked.mode}, {asked.gpus} devices" if asked.how == "runs" else "one process, two threads"
    speeds, switches = runs(asked) if asked.how == "runs" else live(asked)
    print(f"{what}, {asked.load} busy loops beside it, n = {asked.rounds} rounds")
    for policy, each in speeds.items():
        found = compare_rounds(speeds[asked.policies[0]], each)
        interval = "" if found.low is None else f" [{found.low:.3f} to {found.high:.3f}]"
        more = f", {switches[policy]:.0f} waits per step that gave up the core" if switches else ""
        print(f"{policy}: {statistics.median(each):.1f} images/s, ratio {found.ratio:.3f}{interval}{more}", flush=True)


def environment(asked, policy: str) -> dict[str, str]:
    """The environment of a process under a policy."""
    preload = {"LD_PRELOAD": asked.preload} if asked.preload else {}
    return os.environ | {"OMP_NUM_THREADS": "2"} | dict([policy.split("=")]) | preload


@contextlib.contextmanager
def busy(count: int):
    """Run count busy loops during the block."""
    loops = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def live(asked) -> tuple[dict, dict]:
    """Policy -> images per second in each round; policy -> voluntary context switches per step."""
    speeds, switches = ({policy: [] for policy in asked.policies} for _ in range(2))
    draw = random.Random(0)
    for _ in range(asked.rounds):
        argv = [sys.executable, "-u", "-m", "tests.validation.wait_policy", "worker"]
        processes = {
            policy: subprocess.Popen(argv, env=environment(asked, policy), stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, bufsize=1)
            for policy in draw.sample(asked.policies, len(asked.policies))
        }  # fmt: skip
        try:
            for process in processes.values():
                assert process.stdout.readline() == "ready\n"
            seconds, gave_up = dict.fromkeys(processes, 0.0), dict.fromkeys(processes, 0)
            with busy(asked.load):
                for _ in range(TURNS):
                    for policy in draw.sample(asked.policies, len(asked.policies)):
                        processes[policy].stdin.write("go\n")
                        took, count = processes[policy].stdout.readline().split()
                        seconds[policy] += float(took)
                        gave_up[policy] += int(count)
                        time.sleep(PAUSE_S)  # until the default, too, has stopped to spin
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        for policy in asked.policies:
            speeds[policy].append(TURNS * STEPS * WORKLOAD["batch"] / seconds[policy])
            switches[policy].append(gave_up[policy] / (TURNS * STEPS))
    return speeds, {policy: statistics.fmean(each) for policy, each in switches.items()}


def worker() -> None:
    """Train STEPS steps for each line of standard input; print the seconds, and the waits that gave up the core."""
    import torch

    from bench.config.options import RunConfig
    from bench.workload.models import build_model

    model = build_model(RunConfig(model="resnet18", data="digits", image_size=16), 10, rank=0)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), torch.nn.CrossEntropyLoss()
    images, labels = torch.randn(WORKLOAD["batch"], 3, 16, 16), torch.randint(0, 10, (WORKLOAD["batch"],))

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()

    steps()
    print("ready", flush=True)
    for _ in sys.stdin:
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw, time.perf_counter()
        steps()
        took = time.perf_counter() - began
        print(took, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before, flush=True)


def runs(asked) -> tuple[dict, dict]:
    """Policy -> images per second of one `bench run` in each round."""
    speeds = {policy: [] for policy in asked.policies}
    with tempfile.TemporaryDirectory() as out:
        options = WORKLOAD | {"mode": asked.mode, "gpus": asked.gpus, "out": out}
        command = [sys.executable, "-m", "bench", "run", *(f"--{name}={value}" for name, value in options.items())]
        for number in range(asked.rounds):
            for policy in order(asked.policies, number):
                with busy(asked.load):
                    done = subprocess.run(command, env=environment(asked, policy), capture_output=True, text=True,
                                          timeout=600)  # fmt: skip
                if done.returncode:
                    sys.exit(done.stdout + done.stderr)
                record = Path(done.stdout.split("record: ")[-1].strip())
                speeds[policy].append(json.loads(record.read_text())["summary"]["throughput_per_s"])
    return speeds, {}


if __name__ == "__main__":
    main()
