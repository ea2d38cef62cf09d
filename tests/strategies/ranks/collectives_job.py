"""Counts the collectives of a few optimizer steps, ours and those of loops written by hand.

python collectives_job.py DEVICES FOLDER NAME...   -> FOLDER/counts.json: name -> kind -> count a step
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers.trainers import quiet
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from paceline import TrainModule
from paceline.callbacks import Callback
from paceline.strategies import DDP, FSDP, HSDP, DeepSpeed
from paceline.strategies.ranks import recursive_doubling
from paceline.trainer.faults import stop_agreement as agreement

BLOCKS, WIDTH, BATCH = 3, 16, 4
WARM, COUNTED = 5, 2  # steps before counting, and counted; replicas are compared after 1, 2, 4 and 8
WORDS = 200  # steps over which words about stopping are counted
SMALL_BUCKETS = 0.002  # MiB


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(x)))


class Model(TrainModule):
    def __init__(self, weighted: bool = False, unused: bool = False, buffers: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.BatchNorm1d(WIDTH) if buffers else nn.Identity()
        self.never = nn.Linear(3, 3) if unused else None

    def training_step(self, batch):
        loss = self.last(self.blocks(self.norm(self.first(batch[0])))).square().mean()
        return {"loss": loss, "weight": torch.tensor(5.0)} if self.hparams["weighted"] else loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Manual(TrainModule):
    """Two optimizers, two backward passes a step."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 1), nn.Linear(4, 1)

    def training_step(self, batch):
        for part, optimizer in zip((self.one, self.two), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(part(batch[0]).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=1e-3) for part in (self.one, self.two)]


class Count(Callback):
    """Profiles ``COUNTED`` steps after the first ``WARM``."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def on_step_end(self, trainer):
        if trainer.global_step == WARM:
            self.profile = profile(activities=[ProfilerActivity.CPU])
            self.profile.start()
        if trainer.global_step == WARM + COUNTED:
            self.profile.stop()
            self.found = collectives(self.profile)


def collectives(profiled: profile) -> Counter[str]:
    """Kinds of collectives, and how often each was called."""
    names = [e.name for e in profiled.events() or []]
    return Counter(n.removeprefix("gloo:").lstrip("_") for n in names if n.startswith("gloo:"))


def a_step(found: Counter[str]) -> dict[str, float]:
    return {kind: count / COUNTED for kind, count in found.items()}


def fit(
    strategy: Any,
    model: TrainModule,
    micro_batches: int,
    steps: int,
    callback: Callback,
    folder: Path,
    devices: int,
    **more: Any,
) -> None:
    """A run without a log point, a validation or a checkpoint after its first step."""
    trainer = quiet(
        strategy=strategy,
        devices=devices,
        accumulate=micro_batches,
        max_steps=steps,
        log_every=10**6,
        callbacks=[callback],
        run_dir=folder / "runs",
        **more,
    )
    rows = BATCH * devices * micro_batches * (steps + 2)
    trainer.fit(model, DataLoader(TensorDataset(torch.ones(rows, 4)), BATCH))


def ours(
    strategy: Any, micro_batches: int = 1, model: TrainModule | None = None, **more: Any
) -> Callable[[Path, int], dict[str, float]]:
    """A fit whose steps are counted."""

    def run(folder: Path, devices: int) -> dict[str, float]:
        count, steps = Count(), WARM + COUNTED + 2
        chosen = strategy() if callable(strategy) else strategy
        fit(chosen, model or Model(), micro_batches, steps, count, folder, devices, **more)
        return a_step(count.found)

    return run


def by_hand(step: Callable[[], None]) -> dict[str, float]:
    """The same number of steps without a trainer."""
    for _ in range(WARM):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(COUNTED):
            step()
    return a_step(collectives(profiled))


def torch_ddp(
    micro_batches: int, model: TrainModule | None = None, **options: Any
) -> Callable[[Path, int], dict[str, float]]:
    """A loop over torch's own wrapper, with its own defaults."""

    def run(folder: Path, devices: int) -> dict[str, float]:
        wrapped = DistributedDataParallel(Plain(model or Model()), **options)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)

        def step() -> None:
            for index in range(micro_batches):
                wrapped.require_backward_grad_sync = index == micro_batches - 1
                wrapped([torch.ones(BATCH, 4)]).backward()
            optimizer.step()
            optimizer.zero_grad()

        return by_hand(step)

    return run


def own_deepspeed(stage: int, micro_batches: int) -> Callable[[Path, int], dict[str, float]]:
    """A loop as DeepSpeed's users write it; it runs after one of ours, which imported the library."""

    def run(folder: Path, devices: int) -> dict[str, float]:
        import deepspeed

        model = Plain(Model())
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
            config={
                "train_micro_batch_size_per_gpu": BATCH,
                "gradient_accumulation_steps": micro_batches,
                "gradient_clipping": 0.0,
                "zero_allow_untested_optimizer": True,
                "zero_optimization": zero(stage),
            },
            dist_init_required=False,
        )

        def step() -> None:
            for _ in range(micro_batches):
                engine.backward(engine([torch.ones(BATCH, 4)]))
                engine.step()

        found = by_hand(step)
        engine.destroy()
        return found

    return run


class Plain(nn.Module):
    """The model with its training step as forward."""

    def __init__(self, model: TrainModule) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model.training_step(batch)


def zero(stage: int) -> dict[str, Any]:
    small = {"reduce_bucket_size": 10**5, "allgather_bucket_size": 10**5} if stage else {}
    return {"stage": stage, **small} | ({"stage3_param_persistence_threshold": 0} if stage == 3 else {})


def words_about_stopping(folder: Path, devices: int) -> dict[str, float]:
    """All-reduces of small values on the host; the gradients go elsewhere, so these are the words."""
    calls: list[int] = []
    usual = recursive_doubling.all_reduce

    class Window(Callback):
        def on_step_end(self, trainer):
            if trainer.global_step in (WARM, WARM + WORDS):
                calls.append(counted)

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal counted
        counted += 1
        return usual(*args, **kwargs)

    counted = 0
    recursive_doubling.all_reduce = counting
    try:
        fit("ddp", Model(), 1, WARM + WORDS + 2, Window(), folder, devices)
    finally:
        recursive_doubling.all_reduce = usual
    return {"words": calls[1] - calls[0]}


def every_case() -> dict[str, Callable[[Path, int], dict[str, float]]]:
    cases: dict[str, Callable[[Path, int], dict[str, float]]] = {}
    for micro in (1, 3):
        cases[f"ddp-{micro}"] = ours("ddp", micro)
        small = {"bucket_cap_mb": SMALL_BUCKETS}
        cases[f"ddp-small-buckets-{micro}"] = ours(lambda: DDP(bucket_cap_mb=SMALL_BUCKETS), micro)
        cases[f"torch-ddp-small-buckets-{micro}"] = torch_ddp(micro, **small)
        cases[f"fsdp-{micro}"] = ours("fsdp", micro)
        cases[f"hsdp-{micro}"] = ours(lambda: HSDP(replicate=2), micro)
        for stage in range(4) if micro > 1 else ():
            strategy = lambda stage=stage: DeepSpeed(config={"zero_optimization": zero(stage)})
            cases[f"zero-{stage}-{micro}"] = ours(strategy, micro)
            cases[f"own-zero-{stage}-{micro}"] = own_deepspeed(stage, micro)
    cases |= {
        "ddp-clip": ours("ddp", clip_grad_norm=0.1),
        "ddp-weighted": ours("ddp", 3, Model(weighted=True)),
        "ddp-unused": ours("ddp", 3, Model(unused=True)),
        "ddp-buffers": ours("ddp", 3, Model(buffers=True)),
        "ddp-own-buffers": ours(lambda: DDP(broadcast_buffers=False), 3, Model(buffers=True)),
        "torch-ddp-buffers": torch_ddp(3, model=Model(buffers=True)),
        "ddp-manual": ours("ddp", 1, Manual()),
        "fsdp-clip": ours("fsdp", clip_grad_norm=0.1),
        "fsdp-weighted": ours("fsdp", 3, Model(weighted=True)),
        "fsdp-kept": ours(lambda: FSDP(reshard_after_forward=False), 3),
        "hsdp-clip": ours(lambda: HSDP(replicate=2), clip_grad_norm=0.1),
        "zero-2-weighted": ours(
            lambda: DeepSpeed(config={"zero_optimization": zero(2)}), 3, Model(weighted=True)
        ),
        "stop-word": words_about_stopping,
    }
    return cases


if __name__ == "__main__":
    torch.set_num_threads(1)
    usual, cases, counts = agreement._SECONDS, every_case(), {}
    for name in sys.argv[3:]:
        # Without a word about stopping among the counted steps, but where it is what is counted.
        agreement._SECONDS = usual if name == "stop-word" else 10.0**6
        counts[name] = cases[name](Path(sys.argv[2]), int(sys.argv[1]))
        gc.freeze()  # DeepSpeed collects garbage often: a third of a second each over all that is imported
    if torch.distributed.get_rank() == 0:
        Path(sys.argv[2], "counts.json").write_text(json.dumps(counts))
