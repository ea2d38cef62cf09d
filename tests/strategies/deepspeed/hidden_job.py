"""Trains on each rank, in a process that has no DeepSpeed: python hidden_job.py STRATEGY..."""

import sys

from helpers.small_net import Net, data
from helpers.trainers import quiet

sys.modules["deepspeed"] = None  # type: ignore[assignment]  # from here on an import of it fails
for strategy in sys.argv[1:]:
    trainer = quiet(strategy=strategy, devices="auto", max_steps=2)
    trainer.fit(Net(), data(), data())
    assert trainer.strategy.environment.world_size == 2
    print(f"{strategy}: val/loss {trainer.metrics['val/loss']:.4f}")
