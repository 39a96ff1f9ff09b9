"""bfloat16 autocast without a scaler, a cosine schedule, weights saved in half precision."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.utils.data as td

from bench.observe import Watch


def main():
    dist.init_process_group(backend="gloo", init_method="env://")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (128, 12))
    dataset = td.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 50))
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    sampler = td.DistributedSampler(dataset, num_replicas=world, rank=rank, drop_last=True)
    loader = td.DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * len(loader))
    watch = Watch(model, optimizer)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for source, wanted in watch(loader):
            with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
                logits = model(source)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
    if rank == 0:
        half = {name: value.to(torch.bfloat16) for name, value in model.module.state_dict().items()}
        torch.save(half, "model-bf16.pt")
    watch.report()
    dist.destroy_process_group()


main()
