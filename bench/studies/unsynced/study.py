"""`bench unsynced-init`: what is lost when replicas start from different weights, paired over seeds.

Every mode of several processes, with its replicas made equal at the start and without, and dp, which has one set of
weights, on the same batches. The suite is made in bench/studies/programs.py, and bench/studies/unsynced/result.py says what came of it.
"""

from bench.analysis import tables
from bench.commands import study as experiments
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.studies import programs as suites
from bench.studies.accuracy import result as accuracy
from bench.studies.unsynced import result as unsynced

STUDIED = ("init_sync", "broadcast_buffers", "mistake", "watch", "sync")  # the suite's own to set


def run(asked: RunConfig, seeds: int | None, quick: bool) -> int:
    """Train every program once a seed. asked: with the recipe's options. Raises UserError for what cannot be studied:
    one replica, a training without epochs, data without a validation set."""
    experiments.refuse(asked, *STUDIED)
    if asked.num_devices < 2:
        raise UserError("GPUS=1 is one replica, which cannot start apart from another: use GPUS=2 or more")
    if not asked.replicas:
        raise UserError("REPLICAS=0 would record nothing of the replicas: leave it out")
    console = tables.terminal()
    config = experiments.prepare_training(console, asked)
    roles = suites.unsynced(config, experiments.available(console))
    margin = f"{accuracy.margin_words()}, each model against {unsynced.MAIN} of the synchronised run, paired by seed"
    console.print(f"margin, fixed now: {margin}")
    folder = experiments.run(
        console, "unsynced", roles, seeds, quick, asked.out, in_round=suites.own_seed, say=every_rank
    )
    return experiments.finish(console, [folder])


def every_rank(record: dict) -> str:
    """What is said of a training while its suite goes on: top-1 of each rank's own model."""
    last = unsynced.replicas_of(record)["ranks_top1"][-1]
    return f"{' / '.join(f'{100 * top1:.1f}' for top1 in last)} %"
