"""MODEL=gpt: a decoder as in GPT-2 (Radford et al. 2019), without dropout and with separate weights for the output
layer. It has no batch norm, so ranks exchange only gradients."""

import torch
from torch import nn
from torch._guards import detect_fake_mode

from bench import formulas
from bench.config.options import RunConfig
from bench.errors import UserError

START = 0.02  # standard deviation of the initial weights, as GPT-2's
MOST_SHARE = 0.9  # of the free memory, for weights and gradients


def build(config: RunConfig, num_outputs: int) -> nn.Module:
    """Raises UserError if all processes' weights and gradients do not fit into the host's free memory."""
    if not detect_fake_mode():  # a simulated step takes no memory
        import psutil

        parameters = formulas.gpt_parameters(config.layers, config.width, config.context, num_outputs)
        processes = config.num_processes if config.device == "cpu" else 1
        needed, free = 8 * parameters * processes, psutil.virtual_memory().available
        if needed > MOST_SHARE * free:
            raise UserError(
                f"MODEL={config.model} is too large: {parameters:,} parameters take {needed / 2**30:.1f} GiB with "
                f"their gradients{f' in {processes} processes' * (processes > 1)}, but {free / 2**30:.1f} GiB are "
                "free here: use a smaller NUM_LAYERS or EMBED_DIM"
            )
    return Gpt(config.layers, config.width, config.heads, config.context, num_outputs)


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=START)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens [batch, length] -> logits of the next token [batch, length, vocabulary]."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]  # [batch, length, width]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.project(self.attention(self.norm1(x)))
        return x + self.contract(nn.functional.gelu(self.expand(self.norm2(x))))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention: [batch, length, width] -> the same shape."""
        batch, length, width = x.shape
        parts = self.attend(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, width / heads]
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return found.transpose(1, 2).reshape(batch, length, width)
