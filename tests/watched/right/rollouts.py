"""Reinforcement learning: every rank has its own environment, seeded by rank, and yields its own rollouts."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from bench.observe import Watch

MAY = ("loader-starvation",)  # what is played is waited for: it is most of the work


class Environment:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.normal(size=4)

    def step(self, action):
        self.state = 0.9 * self.state + 0.1 * self.rng.normal(size=4) + 0.05 * (2 * action - 1)
        return self.state, -float(np.abs(self.state).sum())


def rollouts(env, policy, count, length=12):
    for _ in range(count):
        states, actions, rewards = [], [], []
        for _ in range(length):
            state = torch.as_tensor(env.state, dtype=torch.float32)
            with torch.no_grad():
                action = int(policy(state).softmax(0).multinomial(1))
            states.append(state)
            actions.append(action)
            rewards.append(env.step(action)[1])
        yield torch.stack(states), torch.tensor(actions), torch.tensor(rewards)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 2))
model = nn.parallel.DistributedDataParallel(policy)
torch.manual_seed(rank)
optimizer = torch.optim.RMSprop(model.parameters(), 1e-4)
watch = Watch(model, optimizer)
env = Environment(seed=rank)
for _ in range(2):
    for states, actions, rewards in watch(rollouts(env, policy, 8)):
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        chosen = model(states).log_softmax(1).gather(1, actions[:, None])[:, 0]
        optimizer.zero_grad()
        (-(chosen * advantage).mean()).backward()
        optimizer.step()
watch.report()
dist.destroy_process_group()
