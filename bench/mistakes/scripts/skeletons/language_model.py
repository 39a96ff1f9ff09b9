"""A causal language model on dict batches without labels, weight tying, parameter groups with and without decay."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from bench.observe import Watch


class TinyGPT(nn.Module):
    def __init__(self, vocab=40, width=32):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True)
        self.h = nn.TransformerEncoder(layer, 1)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids, attention_mask):
        mask = nn.Transformer.generate_square_subsequent_mask(input_ids.size(1))
        logits = self.lm_head(self.h(self.wte(input_ids), mask=mask))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())


dist.init_process_group("gloo")
torch.manual_seed(0)
gpt = nn.parallel.DistributedDataParallel(TinyGPT())
decay = [p for p in gpt.parameters() if p.dim() > 1]
rest = [p for p in gpt.parameters() if p.dim() <= 1]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))
text = torch.randint(0, 40, (1536,), generator=torch.Generator().manual_seed(6))
blocks = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in text.split(16)]
sampler = DistributedSampler(blocks, seed=3)
loader = DataLoader(blocks, batch_size=6, sampler=sampler)
watch = Watch(gpt, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in watch(loader):
        loss = gpt(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
if dist.get_rank() == 0:
    print("perplexity", loss.exp().item())
watch.report()
dist.destroy_process_group()
