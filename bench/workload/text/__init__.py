"""A language model on bytes: each position predicts the next byte. A token is a byte."""

import hashlib
import importlib
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from bench.config import data_sets
from bench.errors import UserError
from bench.workload import base
from bench.workload.loader import training_set


class Workload(base.Workload):
    num_outputs = 256

    def load(self, mode, say: Callable[[str], None]) -> tuple:
        name = data_sets.DATA_SETS[self.config.data].module
        texts = importlib.import_module(f"bench.workload.text.{name}").load(self.config)
        self.sha256 = hashlib.sha256(b"".join(text.numpy().tobytes() for text in texts)).hexdigest()
        train_set, val_set = (Sequences(text, self.config.context) for text in texts)
        train_set = training_set(self.config, train_set, "sequences", f"of CONTEXT={self.config.context} ", "CONTEXT")
        if not len(val_set):
            raise UserError(f"CONTEXT={self.config.context} exceeds the validation text of DATA="
                            f"{self.config.data}: use a smaller one")  # fmt: skip
        return train_set, val_set

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """outputs [b, length, 256], targets [b, length] -> the mean cross-entropy, in nats."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def count(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """[2]: the sums over sequences of the mean cross-entropy of their bytes, in nats and in bits."""
        nats = nn.functional.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1).sum()
        return torch.stack([nats, nats / math.log(2)])

    def blank(self) -> torch.Tensor:
        return torch.zeros(1, self.config.context, dtype=torch.long)

    def facts(self, model: nn.Module) -> dict:
        return {"data_sha256": self.sha256} if hasattr(self, "sha256") else {}

    def planned(self, examples: int) -> tuple:
        return tuple(torch.empty(examples, self.config.context, dtype=torch.long, device="meta") for _ in range(2))


class Sequences:
    """A text [n] uint8 in sequences of ``context`` bytes without overlap; the remainder is dropped."""

    def __init__(self, text: torch.Tensor, context: int):
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context  # the last sequence needs a following byte

    def __getitem__(self, draws: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """[B] draws -> bytes [B, context], the following bytes [B, context], nothing unreadable."""
        starts = torch.from_numpy(draws % len(self)) * self.context
        found = self.text[starts[:, None] + torch.arange(self.context + 1)].long()
        return found[:, :-1], found[:, 1:], []
