"""A part of `bench doctor gpu` whose checks need no GPU, for tests of how checks are begun and ended."""

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.errors import RunFailed
from bench.process.ending import signals_as_interrupt
from bench.proof.gpu_check.base import Answer, NotExercised, Part
from bench.proof.gpu_check.ground import TWO_GPUS

PART = Part("A1", "made up")


@PART.check(1)
def right(ground):
    """Is it so?"""
    ground.runs["its options"] = "its-folder"
    with open(ground.out / "begun", "a") as file:
        file.write("right ")
    return Answer(True, {"width m": 1.23456, "nothing": None})


@PART.check(1)
def wrong(ground):
    """Is it not so?"""
    print("said on the way")
    return Answer(False, {"not a number": float("nan"), "earlier": " ".join(ground.runs)})


@PART.check(1)
def breaks(ground):
    """Does the run end well?"""
    raise RunFailed("rank 1 was killed; see rank1.log")


@PART.check(1)
def mistaken(ground):
    """Has the check itself no fault?"""
    return ground.no_such_thing


@PART.check(1)
def crashes(ground):
    """Does its process say something?"""
    print("Segmentation fault, say", flush=True)
    os._exit(7)


@PART.check(1, TWO_GPUS)
def across(ground):
    """Is it so across two GPUs?"""
    return Answer(True)


@PART.check(1)
def unable(ground):
    """Can it be asked here?"""
    raise NotExercised("NVML does not tell it here")


@PART.check(30)
def hangs(ground):
    """Does it end?"""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(ground.out, "child").write_text(str(child.pid))
    with signals_as_interrupt():  # as a run has it
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            raise RunFailed("interrupted") from None


@PART.check(10_000)
def long(ground):
    """Is there time for it?"""
    return Answer(True)
