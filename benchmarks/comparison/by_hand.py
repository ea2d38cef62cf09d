import itertools
import os
import signal
from pathlib import Path

import task
import torch
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

options, rank, world = task.options, task.RANK, task.WORLD
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
stops = False


def evaluate():
    net.eval()
    data = task.Samples(7)
    sums = torch.zeros(3, dtype=torch.float64)
    for batch in DataLoader(Subset(data, range(rank, len(data), world)), 2):
        with torch.no_grad():
            logits = net(**batch)["logits"]
        correct = (logits.argmax(1) == batch["y"]).sum()
        loss = cross_entropy(logits, batch["y"], reduction="sum")
        sums += torch.tensor([correct, loss, len(logits)])
    if world > 1:
        dist.all_reduce(sums)
    task.report(accuracy=sums[0] / sums[2], loss=sums[1] / sums[2])


def save(path, step):
    weights, states = get_state_dict(net, optimizer, options=WHOLE)
    random = [torch.get_rng_state()]
    if world > 1:
        random = [None] * world
        dist.all_gather_object(random, torch.get_rng_state())
    if rank == 0:
        path.parent.mkdir(exist_ok=True)
        parts = [weights, states, scheduler.state_dict(), step, random]
        torch.save(parts, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)


def load(path):
    weights, states, schedule, step, random = torch.load(path)
    set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=states, options=WHOLE)
    scheduler.load_state_dict(schedule)
    if len(random) == world:
        torch.set_rng_state(random[rank])
    return step


def stop(*_):
    global stops
    stops = True


def agreed():
    """Whether any rank was asked to stop."""
    flag = torch.tensor(int(stops))
    if world > 1:
        dist.all_reduce(flag)
    return bool(flag)


def train():
    step = 0
    if options.resume:
        step = load(Path("checkpoints/last.pt"))
    signal.signal(signal.SIGTERM, stop)
    net.train()
    for epoch in range(step // len(loader), options.epochs):
        sampler.set_epoch(epoch)
        for batch in itertools.islice(loader, step % len(loader), None):
            loss = net(**batch)["loss"]
            if options.guard and not loss.isfinite():
                raise FloatingPointError(f"step {step + 1}: loss {loss.item()}")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if (stopped := agreed()) or step % options.save == 0:
                save(Path("checkpoints/last.pt"), step)
            if stopped:
                return
    task.done(net)


if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
net = task.Net()
data = task.Samples(options.samples)
sampler = DistributedSampler(data, world, rank, shuffle=True)
loader = DataLoader(data, options.batch // world, sampler=sampler, generator=torch.Generator())
if options.strategy == "fsdp":
    fully_shard(net)
elif world > 1:
    net = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, options.epochs * len(loader))
evaluate() if options.evaluate else train()
if world > 1:
    dist.destroy_process_group()
