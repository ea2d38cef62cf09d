"""Steps on several ranks, under the Trainer and by hand: torch's DDP and FSDP, DeepSpeed's ZeRO.

    python benchmarks/distributed.py [--ranks 2] [--batches 4] [--pairs 16] [--rounds 10] [--json FILE]

Batches are ready. In one run the Trainer takes steps of so many batches, then the loop that the strategy's
own documentation has takes as many, with the same options: what the machine does beside strikes both alike.
(Where a step is 4 micro-batches there are four times the pairs, so that all rows have as many steps.)
How their memory lies makes one of the two up to 3 % faster for the whole of a run: there are several, and
each of the two is the first to be built in every other one. A run counts as the mean of its pairs'
differences, without the tenth at either end; the table has the mean over runs and its standard error,
against the 2 % or 10 us that we allow ourselves.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from workloads import GPT, loss_of

from paceline import Trainer, TrainModule
from paceline.callbacks import Callback

BATCH, LENGTH, WORDS = 4, 128, 512
STRATEGIES = {
    "ddp": 1,
    "ddp, 4 micro-batches": 4,
    "fsdp": 1,
    "fsdp, 4 micro-batches": 4,
    "deepspeed_stage_1": 1,
    "deepspeed_stage_2": 1,
    "deepspeed_stage_3": 1,
}
Step = Callable[[list[Any]], None]


def make_net() -> GPT:
    """A small GPT: 920 000 parameters."""
    torch.manual_seed(0)
    return GPT(words=WORDS, length=LENGTH, width=128, depth=4, heads=4)


def make_optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


class Module(TrainModule):
    """Under a Trainer; ``first`` is called when ranks have met and before the strategy takes the module."""

    def __init__(self, net: GPT, first: Callable[[], None]) -> None:
        super().__init__()
        self.net, self.first = net, first

    def training_step(self, batch: Any) -> Any:
        return loss_of(self.net, batch)

    def configure_optimizers(self) -> Any:
        self.first()
        return make_optimizer(self)


def ddp_by_hand(bare: GPT) -> Step:
    """As torch's tutorial has it, without the gradient reduction of all but the last micro-batch."""
    net = nn.parallel.DistributedDataParallel(bare, gradient_as_bucket_view=True)
    optimizer = make_optimizer(net)

    def step(batches: list[Any]) -> None:
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with contextlib.nullcontext() if last else net.no_sync():
                (loss_of(net, batch) / len(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fsdp_by_hand(net: Any) -> Step:
    """``fully_shard`` on the layers, then on the whole."""
    from torch.distributed.fsdp import fully_shard

    for layer in net.layers:
        fully_shard(layer)
    fully_shard(net)
    optimizer = make_optimizer(net)

    def step(batches: list[Any]) -> None:
        for number, batch in enumerate(batches):
            if len(batches) > 1:
                net.set_requires_gradient_sync(number == len(batches) - 1)
            (loss_of(net, batch) / len(batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def zero_by_hand(net: GPT, stage: int) -> Step:
    """``deepspeed.initialize``, with buffers no larger than the model."""
    import deepspeed

    parameters = sum(p.numel() for p in net.parameters())
    bucket = -(-parameters // 512) * 512
    zero = {"stage": stage, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if stage == 3:
        zero["memory_efficient_linear"] = False
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=make_optimizer(net), config=config, dist_init_required=False
    )

    def step(batches: list[Any]) -> None:
        engine.backward(loss_of(engine, batches[0]))
        engine.step()

    return step


def by_hand(strategy: str, net: GPT) -> Step:
    """The hand-written step of a strategy; its process group is there."""
    if strategy.startswith("deepspeed"):
        return zero_by_hand(net, int(strategy[-1]))
    return ddp_by_hand(net) if strategy == "ddp" else fsdp_by_hand(net)


class InTurn(Callback):
    """Times some steps of the run, then as many by hand."""

    def __init__(self, strategy: str, net: GPT, steps: list[list[Any]]) -> None:
        self.strategy, self.net, self.steps = strategy, net, steps
        self.step: Step | None = None
        self.pairs: list[tuple[float, float]] = []

    def build(self) -> None:
        self.step = by_hand(self.strategy, self.net)

    def on_train_epoch_start(self, trainer: Trainer) -> None:
        if self.step is None:
            self.build()
        self.begun = time.perf_counter()

    def on_step_end(self, trainer: Trainer, outputs: Any) -> None:
        if trainer.global_step % len(self.steps):
            return
        assert self.step is not None
        now = time.perf_counter()
        ours = now - self.begun
        for batches in self.steps:
            self.step(batches)
        self.begun = time.perf_counter()
        self.pairs.append(((self.begun - now) / len(self.steps), ours / len(self.steps)))


def job(name: str, ranks: int, batches: int, pairs: int, hand_first: bool, out: Path) -> None:
    """One strategy, on all ranks; rank 0 writes seconds a step of such pairs, by hand and ours."""
    torch.set_num_threads(1)
    strategy, micro_batches = name.partition(",")[0], STRATEGIES[name]
    steps, warm_up = max(batches // micro_batches, 1), 4
    pairs *= batches // steps  # as many steps for every row
    count = steps * (pairs + warm_up) * micro_batches * ranks
    torch.manual_seed(0)  # the same data on all ranks
    ready = [tuple(torch.randint(WORDS, (2, BATCH, LENGTH))) for _ in range(count)]
    mine = ready[: steps * micro_batches]
    nets = make_net(), make_net()
    in_turn = InTurn(
        strategy,
        nets[0 if hand_first else 1],
        [mine[at : at + micro_batches] for at in range(0, len(mine), micro_batches)],
    )
    module = Module(nets[1 if hand_first else 0], in_turn.build if hand_first else lambda: None)
    trainer = Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=ranks,
        accumulate=micro_batches,
        progress=False,
        loggers=False,
        checkpoint=False,
        callbacks=[in_turn],
        run_dir=out.parent,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.fit(module, ready)
    assert trainer.global_step == steps * (pairs + warm_up)
    if trainer.is_global_zero:
        out.write_text(json.dumps(in_turn.pairs[warm_up:]))


def measured(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A strategy's row of the table."""
    hands: list[float] = []
    overs: list[float] = []
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "pairs.json"
            command = [sys.executable, __file__, "--job", name, "--out", str(out)]
            for option in ("ranks", "batches", "pairs"):
                command += [f"--{option}", str(getattr(arguments, option))]
            if number % 2:
                command.append("--hand-first")
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
            pairs = json.loads(out.read_text())
        hands.append(trimmed_mean([hand for hand, _ in pairs]))
        overs.append(trimmed_mean([ours - hand for hand, ours in pairs]))
    hand, over = statistics.mean(hands), statistics.mean(overs)
    error = statistics.stdev(overs) / math.sqrt(len(overs))
    allowed = max(10e-6, 0.02 * hand)
    seconds = {"by_hand_us": hand, "over_us": over, "standard_error_us": error, "allowed_us": allowed}
    return {key: round(1e6 * value) for key, value in seconds.items()} | {"within": over <= allowed}


def trimmed_mean(values: list[float]) -> float:
    """The mean without the tenth at either end."""
    out = len(values) // 10
    return statistics.mean(sorted(values)[out : len(values) - out])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10, help="at least 2")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=list(STRATEGIES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--job", help="run this strategy, as a rank of it")
    parser.add_argument("--hand-first", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds: the standard error is that of several runs; take at least 2")
    if arguments.job:
        numbers = arguments.ranks, arguments.batches, arguments.pairs
        job(arguments.job, *numbers, arguments.hand_first, arguments.out)
        return
    result = {}
    print(f"{'us a step':<24}{'by hand':>10}{'over':>8}{'+-':>6}{'allowed':>9}")
    for name in arguments.strategies:
        row = result[name] = measured(name, arguments)
        over = f"{row['over_us']:>+8}{row['standard_error_us']:>6}"
        print(f"{name:<24}{row['by_hand_us']:>10}{over}{row['allowed_us']:>9}", flush=True)
    if arguments.json:
        about = {
            "torch": torch.__version__,
            "ranks": arguments.ranks,
            "batches": arguments.batches,
            "pairs": arguments.pairs,
            "rounds": arguments.rounds,
        }
        arguments.json.write_text(json.dumps({"about": about, "result": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
