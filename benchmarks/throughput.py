"""Samples a second, model FLOPs utilisation and peak memory: by hand, under the Trainer, under peers.

    python benchmarks/throughput.py [--models cnn vit gpt] [--workers 2] [--rounds 7] [--json FILE]
    python benchmarks/throughput.py --loop paceline --models gpt [--steps 3]      # one line of JSON

On a CPU in float32, on an accelerator in bf16 and compiled. Each loop is a separate process, begun in
turn, round by round; ratios are those to the hand-written loop of the same round, and medians are shown.
Utilisation is the model's floating point operations against a large matrix product's on the same device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torch.utils.flop_counter import FlopCounterMode
from workloads import ON_ACCELERATOR, ON_CPU, Workload, loss_of

DEVICE = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
FAST = DEVICE is not None
WORKLOADS = ON_ACCELERATOR if FAST else ON_CPU


class Clock:
    """Called after each step: times the first, from the call of the loop, and those after the warm-up."""

    def __init__(self, warm_up: int, last: int) -> None:
        self.steps, self.warm_up, self.last = 0, warm_up, last
        self.called = time.perf_counter()

    def tick(self) -> None:
        self.steps += 1
        if self.steps in (1, self.warm_up, self.last):
            if FAST:
                torch.accelerator.synchronize()
            now = time.perf_counter()
            if self.steps == 1:
                self.first = now - self.called
            if self.steps == self.warm_up:
                self.begun = now
            elif self.steps == self.last:
                self.seconds = (now - self.begun) / (self.last - self.warm_up)


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-4, fused=FAST)


def by_hand(workload: Workload, loader: DataLoader, net: nn.Module, clock: Clock) -> None:
    """The loop one would write."""
    device = DEVICE or torch.device("cpu")
    net = net.to(device)
    optimizer = optimizer_of(net)
    if FAST:
        net.compile()
    for _ in range(workload.epochs):
        for batch in loader:
            batch = [part.to(device, non_blocking=True) for part in batch]
            with torch.autocast(device.type, torch.bfloat16) if FAST else contextlib.nullcontext():
                loss = loss_of(net, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()


def paceline(workload: Workload, loader: DataLoader, net: nn.Module, clock: Clock) -> None:
    """Ours, with what is on by default except for checkpoints."""
    from paceline import Trainer, TrainModule
    from paceline.callbacks import Callback

    class Module(TrainModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any) -> Any:
            return loss_of(self.net, batch)

        def configure_optimizers(self) -> Any:
            return optimizer_of(self)

    class Ticks(Callback):
        def on_step_end(self, trainer: Any, outputs: Any) -> None:
            clock.tick()

    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            devices=1,
            precision="bf16" if FAST else "32",
            compile=FAST,
            max_epochs=workload.epochs,
            checkpoint=False,
            callbacks=[Ticks()],
            run_dir=folder,
        ).fit(Module(), loader)


def lightning(workload: Workload, loader: DataLoader, net: nn.Module, clock: Clock) -> None:
    """``lightning.Trainer``, with what is on by default except for checkpoints."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = loss_of(self.net, batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer_of(self)

    class Ticks(lightning.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            clock.tick()

    if FAST:
        net.compile()
    with tempfile.TemporaryDirectory() as folder:
        lightning.Trainer(
            accelerator="auto",
            devices=1,
            precision="bf16-mixed" if FAST else "32-true",
            max_epochs=workload.epochs,
            enable_checkpointing=False,
            callbacks=[Ticks()],
            default_root_dir=folder,
        ).fit(Module(), loader)


def accelerate(workload: Workload, loader: DataLoader, net: nn.Module, clock: Clock) -> None:
    """Accelerate around the hand-written loop."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not FAST, mixed_precision="bf16" if FAST else "no")
    optimizer = optimizer_of(net)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    if FAST:
        net.compile()
    for _ in range(workload.epochs):
        for batch in loader:
            loss = loss_of(net, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            clock.tick()


def transformers(workload: Workload, loader: DataLoader, net: nn.Module, clock: Clock) -> None:
    """The Trainer of transformers, which takes a batch for the keywords of a model that gives its loss."""
    import transformers

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, inputs: Any, labels: Any) -> Any:
            return {"loss": loss_of(self.net, [inputs, labels])}

    class Ticks(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

    class Keywords:
        def __iter__(self) -> Any:
            return ({"inputs": inputs, "labels": labels} for inputs, labels in loader)

        def __len__(self) -> int:
            return len(loader)

    class Given(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return Keywords()

    net.to(DEVICE or torch.device("cpu"))
    if FAST:
        net.compile()
    optimizer = optimizer_of(net)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=not FAST,
            bf16=FAST,
            num_train_epochs=workload.epochs,
            save_strategy="no",
            report_to="tensorboard",
            max_grad_norm=0.0,
        )
        Given(model=Model(), args=arguments, optimizers=(optimizer, constant), callbacks=[Ticks()]).train()


LOOPS = {
    "by hand": by_hand,
    "paceline": paceline,
    "lightning": lightning,
    "accelerate": accelerate,
    "transformers": transformers,
}


def shortened(workload: Workload, steps: int) -> Workload:
    """The same for so many steps, of which the first is not timed."""
    items = range(steps * workload.batch)
    return replace(workload, dataset=lambda: Subset(workload.dataset(), items), epochs=1, warm_up=1)


def run(loop: str, model: str, workers: int, steps: int | None) -> None:
    """One loop in this process; a line of JSON is printed."""
    torch.manual_seed(0)
    workload = WORKLOADS[model] if steps is None else shortened(WORKLOADS[model], steps)
    with DEVICE or contextlib.nullcontext():
        net = workload.net()
    loader = DataLoader(
        workload.dataset(),
        workload.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=FAST,
    )
    clock = Clock(workload.warm_up, workload.epochs * len(loader))
    with contextlib.redirect_stdout(sys.stderr):
        LOOPS[loop](workload, loader, net, clock)
    if FAST:
        memory = torch.accelerator.max_memory_allocated()
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"seconds": clock.seconds, "first_step": clock.first, "memory": memory}
    if loop == "by hand":
        found |= {"samples": workload.batch, "flops": flops_of(workload, net)}
    print(json.dumps(found))


def flops_of(workload: Workload, net: nn.Module) -> int:
    """Of one step's forward and backward: those of a sample, counted, times the samples."""
    device = next(net.parameters()).device
    batch = next(iter(DataLoader(workload.dataset(), 1)))
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        loss_of(net, [part.to(device) for part in batch]).backward()
    return counter.get_total_flops() * workload.batch


def flops_of_products() -> float:
    """Floating point operations a second of large matrix products; the best of several."""
    size, repeats = (8192, 20) if FAST else (1024, 5)
    left = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16 if FAST else torch.float32)
    best = 0.0
    for _ in range(8):
        begun = time.perf_counter()
        for _ in range(repeats):
            left @ left
        if FAST:
            torch.accelerator.synchronize()
        best = max(best, repeats * 2 * size**3 / (time.perf_counter() - begun))
    return best


def started(loop: str, model: str, workers: int) -> dict[str, float]:
    """What ``run`` found in a separate process."""
    command = [sys.executable, __file__, "--loop", loop, "--models", model, "--workers", str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{loop} on {model} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(model: str, workers: int, rounds: int) -> dict[str, dict[str, float]]:
    """All loops on one model, round by round."""
    workload = WORKLOADS[model]
    loops = [name for name in LOOPS if name in ("by hand", "paceline") or importlib.util.find_spec(name)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in loops}
    for number in range(rounds):
        for name in loops if number % 2 else reversed(loops):
            found[name].append(started(name, model, workers))
    flops, peak = found["by hand"][0]["flops"], flops_of_products()
    result = {}
    for name, runs in found.items():
        seconds = statistics.median(one["seconds"] for one in runs)
        ratios = [
            hand["seconds"] / one["seconds"] for hand, one in zip(found["by hand"], runs, strict=True)
        ]
        result[name] = {
            "samples_per_second": round(workload.batch / seconds, 1),
            "of_by_hand": round(statistics.median(ratios), 3),
            "mfu": round(flops / seconds / peak, 3),
            "memory_mib": round(statistics.median(one["memory"] for one in runs) / 2**20),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["cnn", "vit", "gpt"], choices=list(WORKLOADS))
    parser.add_argument("--workers", type=int, default=8 if FAST else 2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--loop", choices=list(LOOPS), help="run this one alone, in this process")
    parser.add_argument("--steps", type=int, help="of the one loop, with the first not timed")
    arguments = parser.parse_args()
    if arguments.loop:
        run(arguments.loop, arguments.models[0], arguments.workers, arguments.steps)
        return
    result = {}
    for model in arguments.models:
        result[model] = measure(model, arguments.workers, arguments.rounds)
        print(f"{model:<12}{'samples/s':>10}{'of by hand':>12}{'MFU':>8}{'MiB':>8}")
        for name, row in result[model].items():
            numbers = f"{row['samples_per_second']:>10}{row['of_by_hand']:>12}{row['mfu']:>8}"
            print(f"{name:<12}{numbers}{row['memory_mib']:>8}")
    if arguments.json:
        device = torch.accelerator.current_accelerator()
        about = {
            "torch": torch.__version__,
            "device": str(device or "cpu"),
            "workers": arguments.workers,
            "rounds": arguments.rounds,
        }
        arguments.json.write_text(json.dumps({"about": about, "result": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
