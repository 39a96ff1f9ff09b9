"""A recurrent network as a model and data of your own: an LSTM that predicts the next character of a text.

FILE=tutorials/manual/templates/char_lstm.py; bench compare --gpus 2 --model $FILE:build --data $FILE:datasets

The text is the source of a module of Python's standard library, so nothing is downloaded.
"""

import argparse
import inspect

import torch
from torch import nn
from torch.utils.data import TensorDataset

CHARACTERS = 128  # of ASCII
LENGTH = 64  # characters of a sequence


class CharLSTM(nn.Module):
    def __init__(self, num_characters: int, embed_dim: int = 32, hidden_size: int = 128, num_layers: int = 2):
        super().__init__()
        self.embedding = nn.Embedding(num_characters, embed_dim)
        self.lstm = nn.LSTM(embed_dim, hidden_size, num_layers, batch_first=True)
        self.head = nn.Linear(hidden_size, num_characters)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """characters: [batch, LENGTH] -> logits of each next one: [batch, LENGTH, num_characters]."""
        states, _ = self.lstm(self.embedding(characters))  # every sequence starts from a state of zeros
        return self.head(states)


def build(num_outputs: int) -> nn.Module:
    return CharLSTM(num_outputs)


def datasets() -> tuple:
    """Sequences, and the same moved by one character as targets: [LENGTH] each. The last tenth is for validation."""
    text = torch.tensor(list(inspect.getsource(argparse).encode("ascii", "replace")))
    count = (len(text) - 1) // LENGTH
    inputs, targets = (text[start : start + count * LENGTH].view(count, LENGTH) for start in (0, 1))
    split = count * 9 // 10
    return TensorDataset(inputs[:split], targets[:split]), TensorDataset(inputs[split:], targets[split:]), CHARACTERS


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def score(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[batch]: the share of the characters of a sequence that were predicted."""
    return (outputs.argmax(-1) == targets).float().mean(1)
