"""What looks at the steps of a training, or adds to them, without being part of the loop.

``trainer.hooks`` lists them. training/loop.py calls each method at one place; in a plain run the list is empty. What
a run does otherwise than a right script decides is a ``Script`` (script.py); torch's own hooks see single tensors and
modules.
"""

import torch

from bench.measure.timeline import StepTimeline


class Hook:
    """Does nothing at any place: override what is needed. Every rank has the same hooks, as they may communicate.

    A step's time ends after ``after_optimizer``. What the next two take counts to the step that follows, unless the
    hook calls ``trainer.clock.resume()`` at its end.
    """

    def on_phase(self, name: str) -> None:
        """A phase of the step begins, and the one before it ends: "waiting for data", "forward", "backward",
        "synchronize", "optimizer step"."""

    def before_step(self) -> None:
        """The batch has been fetched, and nothing computed."""

    def after_prepare(self, inputs, prepared) -> None:
        """The batch is on the device: inputs as they were fetched, and as the model gets them."""

    def after_synchronize(self) -> None:
        """The mode says that the gradients are final."""

    def after_optimizer(self, loss: torch.Tensor) -> None:
        """The optimizer's step was taken, or skipped. loss: of this rank, on the device."""

    def on_loss(self, step: int, loss: float) -> None:
        """The loss of a step is known without waiting for the device."""

    def after_step(self) -> None:
        """The step is over, and counted in ``trainer.step``."""


class TimelinePhases(Hook):
    """The loop's phases in the timeline of a profiled step."""

    def __init__(self, timeline: StepTimeline):
        self.timeline = timeline

    def on_phase(self, name: str) -> None:
        self.timeline.phase(name)
