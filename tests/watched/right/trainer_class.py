"""A Trainer class with callbacks and a config, which owns the loop; the Watch is one of its attributes."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bench.observe import Watch


@dataclass
class TrainerConfig:
    max_epochs: int = 3
    batch_size: int = 16
    learning_rate: float = 3e-3
    grad_norm_clip: float = 1.0


class Trainer:
    def __init__(self, config, model, train_dataset):
        self.config, self.model, self.callbacks = config, model, []
        self.sampler = DistributedSampler(train_dataset, shuffle=True)
        self.loader = DataLoader(train_dataset, config.batch_size, sampler=self.sampler, pin_memory=False)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        self.watch = Watch(model, self.optimizer)

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def run(self):
        for epoch in range(self.config.max_epochs):
            self.epoch = epoch
            self.sampler.set_epoch(self.epoch)
            self.model.train()
            for iter_num, batch in enumerate(self.watch(self.loader)):
                self.iter_num = iter_num
                self.training_step(batch)
            for callback in self.callbacks:
                callback(self)
        return self.watch.report()

    def training_step(self, batch):
        x, y = batch
        self.loss = torch.nn.functional.cross_entropy(self.model(x), y)
        self.model.zero_grad(set_to_none=True)
        self.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
        self.optimizer.step()


def log(trainer):
    if int(os.environ["LOCAL_RANK"]) == 0:
        print(trainer.epoch, trainer.iter_num, trainer.loss.item())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(1337)
    x = torch.randn(200, 12)
    net = torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.GELU(), torch.nn.Linear(64, 3))
    net = torch.nn.parallel.DistributedDataParallel(net)
    trainer = Trainer(TrainerConfig(), net, TensorDataset(x, x[:, :3].argmax(1)))
    trainer.add_callback(log)
    trainer.run()
    dist.destroy_process_group()
