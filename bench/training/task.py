"""The training task of a rank (bench/config/tasks.py). ``train`` is the complete sequence, from joining the group to
RUN_DIR/record.json. `bench run --mode ddp --gpus 2` times ten steps; --epochs 3 adds validations and checkpoints."""

import gc
from pathlib import Path

from bench.config.options import RunConfig
from bench.measure import steady
from bench.process.heartbeat import StatusWriter


def run(config: RunConfig, run_dir: Path, status: StatusWriter) -> None:
    """Train; with MIN_DEVICES again after each loss of another rank."""
    if not config.elastic:
        return train(config, run_dir, status)
    status.phase("joining the group")
    from bench.modes import load_mode

    load_mode(config.mode).elastic(config, lambda config, kept: train(config, run_dir, status, kept))


def train(config: RunConfig, run_dir: Path, status: StatusWriter, kept=None) -> None:
    """kept: with MIN_DEVICES, the mode's state between two attempts."""
    moments = {"worker_started": steady.now()}
    if kept:
        gc.unfreeze()  # the previous attempt also froze its model and its optimizer
        gc.collect()
    gc.disable()  # imports make a million objects and no garbage; collecting takes a fifth of their time
    status.phase("joining the group")
    from bench.training import build, measuring  # only now: they load torch
    from bench.training.observer import Observer

    observer = Observer(config, run_dir)  # with WATCH=1 it observes loaded files
    script = build.join(config, kept)
    moments["joined"] = steady.now()
    status.phase("preparing the data")
    data = build.load(config, script, status)
    moments["data_ready"] = steady.now()
    status.phase("building the model")
    trainer, checkpoint = build.build_trainer(config, script, data, status, run_dir)
    gc.freeze()  # the collector is on from here, without the imports' objects
    gc.enable()

    if config.evaluate:
        measuring.evaluate(trainer, checkpoint, data)
    else:
        epochs = build.prepare_epochs(trainer, checkpoint, data)
        observer.start(trainer)
        measured = measuring.measure(trainer, epochs, data.train_set, moments, observer)
        status.phase("collecting results")
        measured |= {"moments": moments, "notes": trainer.notes}
        parts = measuring.collect(trainer, epochs, data, observer, measured)
        measuring.write(trainer, epochs, parts, observer)
    status.phase("done")
    script.mode.close()
