"""Trains small models, each under a strategy with options of its own, and writes down what it saw.

python options_job.py DEVICES FOLDER NAME...   -> FOLDER/NAME.RANK.pt for each case and rank

The tests import this file too: ``observe(name, 1, folder, Single())`` is the same case on one device.
"""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback
from paceline.strategies import DDP, FSDP, HSDP, DeepSpeed, auto
from paceline.strategies.tensors.tensor_state import module_tensors

GLOBAL, STEPS, SAMPLES = 16, 6, 91  # the last step takes 11 samples, an odd number
FLAG, WIDTH = 20.0, 8
CALLS: Counter[str] = Counter()


# -- models ------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        CALLS["block"] += 1
        return x + self.dropout(self.outer(torch.tanh(self.inner(self.norm(x)))))


class Base(TrainModule):
    """Blocks, and a parameter that training_step uses itself."""

    def __init__(self, **options: Any):
        super().__init__()
        self.seen: dict[str, Any] = {}
        self.options = options
        self.build()

    def build(self):
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 4)
        self.blocks = nn.ModuleList(Block(self.options.get("dropout", 0.0)) for _ in range(3))
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def logits(self, x):
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden) * self.gain

    def note(self):
        self.seen |= {
            "class": type(self).__qualname__,
            "modules": [n for n, _ in self.named_modules()],
            "parameters": [n for n, _ in self.named_parameters()],
            "units": [n for n, m in self.named_modules() if type(m).__name__.startswith("FSDP")],
        }

    def training_step(self, batch):
        x, y = batch
        self.note()
        return F.cross_entropy(self.logits(x), y) * self.options.get("steep", 1)

    def validation_step(self, batch):
        x, y = batch
        return F.cross_entropy(self.logits(x), y)

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad]
        if self.options.get("sgd"):
            return torch.optim.SGD(trained, lr=self.options["sgd"], momentum=0.9)
        return torch.optim.AdamW(trained, lr=0.02, eps=1e-3, weight_decay=0.1)


class Unused(Base):
    def build(self):
        super().build()
        self.never, self.nor_this = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(3))


class Frozen(Base):
    def build(self):
        super().build()
        self.blocks[1].requires_grad_(False)


class Sometimes(Base):
    """``extra`` is used by flagged samples alone; a batch without one leaves it out of the graph."""

    def build(self):
        self.first, self.extra, self.last = (
            nn.Linear(5, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 4),
        )

    def logits(self, x):
        flagged = x[:, :1] > FLAG / 2
        hidden = torch.tanh(self.first(torch.where(flagged, x - FLAG, x)))
        if flagged.any():
            hidden = hidden + torch.where(flagged, torch.tanh(self.extra(hidden)), 0)
        return self.last(hidden)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.after = Block(), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.after(self.inner(x))


class Chosen(Base):
    """Its own units: submodules and dotted names; a branch inside a branch."""

    def build(self):
        super().build()
        self.deep = Deep()

    def shard_units(self):
        parts = {"blocks": self.blocks, "deep": self.deep, "first": self.first, "foreign": nn.Linear(2, 2)}
        return [parts.get(u, u) for u in self.options["units"]]

    def logits(self, x):
        return super().logits(x) + self.deep(self.first(x))


class Wide(nn.Module):
    """A block that holds repeated blocks."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        return self.parts[1](self.parts[0](x))


class InSequence(Base):
    def build(self):
        super().build()
        self.blocks = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(), nn.Tanh(), Block())


class Nested(Base):
    def build(self):
        super().build()
        self.blocks = nn.ModuleList([Wide(), Wide()])


class NoBlocks(Base):
    def build(self):
        super().build()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])


class TiedUnits(Base):
    def build(self):
        super().build()
        self.blocks[2].inner.weight = self.blocks[0].inner.weight


class SharedBlock(Base):
    def build(self):
        super().build()
        self.blocks = nn.ModuleList([Block()] * 3)


class Compiled(Base):
    """One of its blocks is what torch.compile returns."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1] = torch.compile(self.blocks[1], backend="aot_eager")


class Scalar(Base):
    def build(self):
        super().build()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def logits(self, x):
        return super().logits(x) * self.temperature


class Manual(Base):
    """Two parts with an optimizer each; ``tied`` shares a weight between them."""

    automatic_optimization = False

    def logits(self, x):
        return self.one(x) + self.two(x)

    def build(self):
        self.one = nn.Sequential(nn.Linear(5, WIDTH), Block(), Block(), nn.Linear(WIDTH, 4))
        self.two = nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
        if self.options.get("tied"):
            self.two[0].weight = self.one[0].weight
        if self.options.get("direct"):
            self.gain = nn.Parameter(torch.ones(4))

    def training_step(self, batch):
        x, y = batch
        self.note()
        for part, optimizer in zip((self.one, self.two), self.optimizers(), strict=True):
            loss = F.cross_entropy(part(x), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        first = list(self.one.parameters()) + ([self.gain] if self.options.get("direct") else [])
        second = [p for p in self.two.parameters() if not any(p is q for q in first)]
        return [torch.optim.SGD(first, lr=0.1, momentum=0.9), torch.optim.AdamW(second, lr=0.02, eps=1e-3)]


class Normed(Base):
    """Batch norms of several kinds in a row."""

    def build(self):
        momentum = self.options.get("momentum", 0.1)
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 4)
        self.norm = nn.BatchNorm1d(WIDTH, momentum=momentum)
        self.convolution = nn.Conv2d(2, 3, 1)
        self.norm2 = nn.BatchNorm2d(3, momentum=momentum, affine=self.options.get("affine", True))
        self.last = nn.Linear(12, 4)

    def logits(self, x):
        hidden = torch.tanh(self.norm(self.first(x)))
        image = self.norm2(self.convolution(hidden.view(-1, 2, 2, 2)))
        return self.last(torch.tanh(image).flatten(1))


class Table(nn.Module):
    """Parameters, a buffer that counts and one that is not saved."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.empty(WIDTH))
        self.register_buffer("offsets", torch.empty(WIDTH))
        self.register_buffer("hidden", torch.empty(WIDTH), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.rows)
        self.offsets.fill_(0.25)
        self.hidden.fill_(2.0)

    def forward(self, x):
        return x * self.rows * self.hidden + self.offsets


class Late(Base):
    """Built by configure_model, on meta."""

    def build(self):
        self.seen |= {"built on": []}

    def configure_model(self):
        self.seen["built on"].append(torch.empty(1).device.type)
        self.first, self.again = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 5, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.table, self.last = Table(), nn.Linear(WIDTH, 4)
        if self.options.get("tied"):
            self.again = nn.Linear(5, WIDTH, bias=self.options["tied"] == "with a bias")
            self.again.weight = self.first.weight

    def logits(self, x):
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.again(x) + hidden if self.options.get("tied") else self.first(self.again(hidden))
        return self.last(self.table(hidden))


class Ignorant(Late):
    """A part of it cannot give itself values."""

    def configure_model(self):
        super().configure_model()
        self.blocks[1].odd = nn.Module()
        self.blocks[1].odd.weight = nn.Parameter(torch.empty(3))


# -- cases -------------------------------------------------------------------------------------


@dataclass
class Case:
    """A model, the strategy it runs under, and what else the Trainer gets.

    Args:
        flags: The step's flagged samples, step by step.
        fits: How often ``fit`` is called on the module.
        memory: What a device is to have, in bytes.
        fatal: An error ends the process.
    """

    model: Callable[..., TrainModule]
    strategy: Callable[[], Any] | str
    options: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    flags: tuple[tuple[int, ...], ...] = ()
    micro: int = 8
    fits: int = 1
    memory: int | None = None
    fatal: bool = False


BOTH, FIRST, SECOND, NONE = (3, 12), (3,), (12,), ()
SINGLE_PRECISION = {"precision": "32"}
RECOMPUTE = {"activation_checkpointing": True}


def on_torch() -> dict[str, Case]:
    """What runs under torch's own strategies, on two ranks."""
    flagged = {
        "first-step-one-rank": (SECOND, BOTH, BOTH, BOTH, BOTH),
        "first-step-rank-zero": (FIRST, BOTH, BOTH, BOTH, BOTH),
        "first-step-none": (NONE, BOTH, SECOND, NONE, BOTH),
    }
    cases = {f"ddp-{n}": Case(Sometimes, "ddp", flags=flags) for n, flags in flagged.items()}
    cases["ddp-searching"] = Case(
        Sometimes, lambda: DDP(find_unused_parameters=True), flags=(BOTH, FIRST, NONE, SECOND, BOTH)
    )
    cases["ddp-searching-accumulate"] = Case(
        Sometimes,
        lambda: DDP(find_unused_parameters=True),
        flags=((1, 5), (1,), (9, 13), (), (5,)),
        micro=4,
    )
    cases |= {
        "ddp-unused": Case(Unused, "ddp"),
        "ddp-unused-accumulate": Case(Unused, "ddp", micro=4, trainer={"clip_grad_norm": 0.05}),
        "ddp-never-searching": Case(Base, lambda: DDP(find_unused_parameters=False)),
        "ddp-static": Case(Base, lambda: DDP(static_graph=True)),
        "ddp-no-bucket-view": Case(Base, lambda: DDP(gradient_as_bucket_view=False, bucket_cap_mb=0.001)),
        "ddp-frozen": Case(Frozen, "ddp"),
        "ddp-recompute": Case(Base, lambda: DDP(**RECOMPUTE)),
        "ddp-twice": Case(Base, "ddp", fits=2),
        "ddp-manual": Case(Manual, "ddp"),
        "ddp-manual-tied": Case(Manual, "ddp", {"tied": True}),
    }
    for n, reshard in (("none", None), ("true", True), ("false", False)):
        cases[f"fsdp-reshard-{n}"] = Case(Base, lambda r=reshard: FSDP(reshard_after_forward=r), micro=4)
    units = {"names": ["blocks.0", "deep.inner"], "mixed": ["first", "deep.inner", "blocks.1"]}
    units |= {"inner-first": ["deep.inner", "deep"], "outer-first": ["deep", "deep.inner"]}
    units |= {"twice": ["blocks.0", "blocks.0"], "none": []}
    cases |= {f"fsdp-units-{n}": Case(Chosen, "fsdp", {"units": u}) for n, u in units.items()}
    cases |= {
        "fsdp-in-sequence": Case(InSequence, "fsdp"),
        "fsdp-nested": Case(Nested, "fsdp"),
        "fsdp-no-blocks": Case(NoBlocks, "fsdp"),
        "fsdp-tied-units": Case(TiedUnits, "fsdp"),
        "fsdp-shared-block": Case(SharedBlock, "fsdp"),
        "fsdp-frozen": Case(Frozen, "fsdp"),
        "fsdp-unused": Case(Unused, "fsdp"),
        "fsdp-offload": Case(Base, lambda: FSDP(cpu_offload=True), trainer={"clip_grad_norm": 0.05}),
        "fsdp-bf16-parameters": Case(Base, in_bfloat16, trainer=SINGLE_PRECISION),
        "fsdp-recompute": Case(Base, lambda: FSDP(**RECOMPUTE)),
        "fsdp-twice": Case(Base, "fsdp", fits=2),
        "fsdp-recompute-twice": Case(Base, lambda: FSDP(**RECOMPUTE), fits=2),
        "fsdp-manual": Case(Manual, "fsdp"),
        "hsdp-two-groups": Case(Base, lambda: HSDP(replicate=2)),
        "hsdp-one-group": Case(Base, lambda: HSDP(replicate=1)),
    }
    synced = {"trainer": {"sync_batchnorm": True}}
    cases |= {
        "ddp-batchnorm": Case(Normed, "ddp", **synced),
        "ddp-batchnorm-cumulative": Case(Normed, "ddp", {"momentum": None}, **synced),
        "ddp-batchnorm-no-affine": Case(Normed, "ddp", {"affine": False}, **synced),
        "ddp-batchnorm-apart": Case(Normed, "ddp"),
        "ddp-batchnorm-own": Case(Normed, lambda: DDP(broadcast_buffers=False)),
        "fsdp-batchnorm": Case(Normed, "fsdp", **synced),
        "fsdp-batchnorm-apart": Case(Normed, "fsdp"),
    }
    for strategy in ("ddp", "fsdp", "hsdp"):
        cases[f"{strategy}-late"] = Case(Late, strategy, fits=2, trainer={"checkpoint": True})
    cases["ddp-late-tied"] = Case(Late, "ddp", {"tied": "without a bias"})
    cases["fsdp-late-tied"] = Case(Late, "fsdp", {"tied": "without a bias"})
    cases["fsdp-late-tied-bias"] = Case(Late, "fsdp", {"tied": "with a bias"})
    cases["fsdp-manual-tied"] = Case(Manual, "fsdp", {"tied": True})
    return cases | refused_by_torch()


def refused_by_torch() -> dict[str, Case]:
    """What ends with an error on every rank."""
    return {
        "ddp-static-accumulate": Case(Base, lambda: DDP(static_graph=True), micro=4),
        "fsdp-units-wrong": Case(Chosen, "fsdp", {"units": ["blocks.0", "deep.nothing"]}),
        "fsdp-units-foreign": Case(Chosen, "fsdp", {"units": ["foreign"]}),
        "fsdp-scalar": Case(Scalar, "fsdp"),
        "fsdp-manual-direct": Case(Manual, "fsdp", {"direct": True}),
        "fsdp-late-ignorant": Case(Ignorant, "fsdp"),
        "ddp-late-ignorant": Case(Ignorant, "ddp"),
        "hsdp-three-groups": Case(Base, lambda: HSDP(replicate=3)),
        "ddp-recompute-no-blocks": Case(NoBlocks, lambda: DDP(**RECOMPUTE)),
        "ddp-not-in-the-last": Case(
            # A parameter that a step uses, though not in its last micro-batch.
            Sometimes,
            "ddp",
            flags=((1, 5, 9, 13), (1, 5, 9, 13), (1, 5)),
            micro=4,
        ),
        "ddp-later-unused": Case(Sometimes, "ddp", flags=(BOTH, BOTH, BOTH, NONE, BOTH)),
    }


def on_deepspeed() -> dict[str, Case]:
    """What runs under DeepSpeed, on two ranks."""
    cases: dict[str, Case] = {}
    for stage in range(4):
        # Gradients are large: DeepSpeed's own default would clip them to a norm of 1.
        large = {"options": {"sgd": 0.01, "steep": 30}, "trainer": SINGLE_PRECISION}
        cases[f"zero-{stage}"] = Case(Base, lambda s=stage: DeepSpeed(s), **large)
        cases[f"zero-{stage}-frozen"] = Case(Frozen, lambda s=stage: DeepSpeed(s), trainer=SINGLE_PRECISION)
        cases[f"zero-{stage}-bf16-true"] = Case(
            Base, lambda s=stage: DeepSpeed(s), trainer={"precision": "bf16-true"}
        )
        if stage:
            cases[f"zero-{stage}-offload"] = Case(
                Base,
                f"deepspeed_stage_{stage}_offload",
                trainer={**SINGLE_PRECISION, "clip_grad_norm": 0.05},
            )
    cases |= {
        "zero-2-recompute": Case(Base, lambda: DeepSpeed(2, **RECOMPUTE), trainer=SINGLE_PRECISION),
        "zero-3-recompute": Case(Base, lambda: DeepSpeed(3, **RECOMPUTE), trainer=SINGLE_PRECISION),
        "zero-2-twice": Case(Base, lambda: DeepSpeed(2), fits=2, trainer=SINGLE_PRECISION),
        "zero-3-twice": Case(Base, lambda: DeepSpeed(3), fits=2, trainer=SINGLE_PRECISION),
        "zero-2-late": Case(Late, lambda: DeepSpeed(2), fits=2, trainer=SINGLE_PRECISION),
        "zero-3-late": Case(
            Late, lambda: DeepSpeed(3), fits=2, trainer={**SINGLE_PRECISION, "checkpoint": True}
        ),
        "zero-2-late-tied": Case(
            Late, lambda: DeepSpeed(2), {"tied": "without a bias"}, trainer=SINGLE_PRECISION
        ),
        "zero-3-late-tied": Case(
            Late, lambda: DeepSpeed(3), {"tied": "without a bias"}, trainer=SINGLE_PRECISION
        ),
        "zero-3-late-tied-bias": Case(
            Late, lambda: DeepSpeed(3), {"tied": "with a bias"}, trainer=SINGLE_PRECISION
        ),
        "zero-2-agreeing": Case(
            Base,
            lambda: DeepSpeed(config=AGREEING),
            trainer={**SINGLE_PRECISION, "clip_grad_norm": 0.05},
        ),
        "zero-2-conflicting": Case(
            Base,
            lambda: DeepSpeed(config=CONFLICTING),
            trainer={**SINGLE_PRECISION, "clip_grad_norm": 0.05},
        ),
        "zero-2-scalar": Case(Scalar, lambda: DeepSpeed(2), trainer=SINGLE_PRECISION),
        "zero-3-compiled": Case(Compiled, lambda: DeepSpeed(3), trainer=SINGLE_PRECISION),
        "zero-2-offload-bf16-true": Case(
            Base, lambda: DeepSpeed(2, offload=True), trainer={"precision": "bf16-true"}
        ),
        "zero-3-late-ignorant": Case(Ignorant, lambda: DeepSpeed(3), trainer=SINGLE_PRECISION),
    }
    return cases


def chosen() -> dict[str, Case]:
    """What ``strategy="auto"`` is to decide, on two ranks."""
    return {
        "auto": Case(Base, "auto"),
        "auto-late": Case(Late, "auto"),
        "auto-too-large": Case(Base, "auto", memory=30_000),
        "auto-late-too-large": Case(Late, "auto", memory=30_000),
    }


def alone() -> dict[str, Case]:
    """What runs on one rank, in a process of its own."""
    named = {"ddp": {}, "fsdp": {}}
    named |= {f"deepspeed_stage_{s}": SINGLE_PRECISION for s in range(4)}
    named |= {f"deepspeed_stage_{s}_offload": SINGLE_PRECISION for s in (2, 3)}
    cases = {f"alone-{n}": Case(Base, n, micro=8, trainer=settings) for n, settings in named.items()}
    return cases | {"alone-auto": Case(Base, "auto"), "alone-hsdp": Case(Base, "hsdp")}


AGREEING = {
    "train_batch_size": GLOBAL,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 0.05,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    "bf16": {"enabled": "auto"},
}
CONFLICTING = {"train_batch_size": 64, "gradient_accumulation_steps": 3}


def in_bfloat16() -> FSDP:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return FSDP(
        mixed_precision=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )


# A job of its own: one rank ends with an error while the other waits.
ENDING = {"ddp-later-one-rank": Case(Sometimes, "ddp", flags=(BOTH, BOTH, BOTH, FIRST), fatal=True)}
ON_TORCH, ON_DEEPSPEED, CHOSEN, ALONE = on_torch(), on_deepspeed(), chosen(), alone()
CASES = ON_TORCH | ON_DEEPSPEED | CHOSEN | ALONE | ENDING


# -- observing ---------------------------------------------------------------------------------


class Watch(Callback):
    """The weights before training and after each step, where every rank has the whole of them."""

    def __init__(self) -> None:
        self.first: dict[str, torch.Tensor] = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.keys: list[str] = []
        self.calls: list[int] = []
        self.buffers: dict[str, torch.Tensor] = {}

    def on_fit_start(self, trainer):
        if not self.first:
            self.first = cloned(trainer.strategy.weights.full_tensors(trainer.module))
        CALLS.clear()

    def on_step_end(self, trainer):
        self.calls.append(CALLS["block"])
        CALLS.clear()
        self.keys = list(module_tensors(trainer.module))
        self.buffers = cloned(dict(trainer.module.named_buffers()))
        if trainer.strategy.name == "ddp":
            self.kept = cloned(trainer.module.state_dict())


def cloned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone() for n, t in tensors.items()}


def data(case: Case, dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    y = x[:, :4].argmax(1)
    for step, flagged in enumerate(case.flags):
        for index in flagged:
            x[step * GLOBAL + index, 0] += FLAG
    return TensorDataset(x.to(dtype), y)


def described(module: nn.Module) -> dict[str, Any]:
    """What must be the same before and after a run."""
    return {
        "classes": {n: type(m).__qualname__ for n, m in module.named_modules()},
        "modules": [n for n, _ in module.named_modules()],
        "parameters": [n for n, _ in module.named_parameters()],
        "keys": list(module_tensors(module)),
        "own forward": [n for n, m in module.named_modules() if "forward" in vars(m)],
    }


def is_plain(module: Base, case: Case) -> str:
    """ "yes", or what a copy, a pickle or a backward of the module runs into."""
    rows = DataLoader(data(case, next(module.parameters()).dtype), 4)
    try:
        for one in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            gradients = torch.autograd.grad(
                F.cross_entropy(one.logits(next(iter(rows))[0]).double(), next(iter(rows))[1]),
                [p for p in one.parameters() if p.requires_grad],
                allow_unused=True,
            )
            assert gradients[0].abs().sum() > 0
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "yes"


def observe(name: str, devices: int, folder: Path, strategy: Any = None) -> dict[str, Any]:
    """Train a case and say what there was to see."""
    case = CASES[name]
    given = case.strategy() if callable(case.strategy) else case.strategy
    precision = {"precision": "64", **case.trainer}["precision"]
    dtype = {"64": torch.float64, "32": torch.float32}.get(precision, torch.float32)
    torch.manual_seed(3)
    module, watch = case.model(**case.options), Watch()
    found: dict[str, Any] = {"error": None, "before": described(module)}
    loader = DataLoader(data(case, dtype), case.micro if strategy is None else GLOBAL)
    trainer = None
    if case.memory is not None:
        auto.device_memory = lambda device: case.memory
    try:
        trainer = Trainer(
            strategy=given if strategy is None else strategy,
            accelerator="cpu",
            devices=devices,
            global_batch_size=GLOBAL,
            max_steps=len(case.flags) or STEPS,
            callbacks=[watch],
            run_dir=folder / "runs",
            name=name,
            sanity_val_batches=0,
            limit_val_batches=1,
            progress=False,
            loggers=False,
            **{"checkpoint": False, "precision": precision, **case.trainer},
        )
        for _ in range(case.fits):
            trainer.fit(module, loader, loader)
        found["weights"] = cloned(trainer.strategy.weights.full_tensors(module))
    except Exception as error:
        if case.fatal:
            raise
        found["error"] = str(error) if isinstance(error, PacelineError) else f"{type(error)} {error}"
        found["changed"] = [n for n, t in watch.kept.items() if not torch.equal(t, module.state_dict()[n])]
    if trainer is not None:
        found["strategy"] = trainer.strategy.name
        found["steps"], found["folder"] = trainer.global_step, str(trainer.folder)
        log = trainer.folder and trainer.folder / "log.txt"
        found["log"] = log.read_text() if log and log.exists() else ""
    found |= {"seen": module.seen, "after": described(module), "calls": watch.calls, "keys": watch.keys}
    found["first"], found["buffers before validation"] = watch.first, watch.buffers
    found["ties"] = sorted(len(v) for v in ties(module).values())
    found["buffers"] = cloned(dict(module.named_buffers()))
    if not strategy and found["error"] is None and (found["strategy"] == "ddp" or "zero-" in name):
        found["plain"] = is_plain(module, case)
    return found


def apart_from_strategy(name: str) -> str:
    """What of a case there is on one device."""
    case = CASES[name]
    return repr((case.model, case.options, case.trainer, case.flags, case.fits, case.memory))


def ties(module: nn.Module) -> dict[int, list[str]]:
    """Names by parameter."""
    found: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    for given in sys.argv[3:]:
        result = observe(given, int(sys.argv[1]), Path(sys.argv[2]))
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        torch.save(result, Path(sys.argv[2]) / f"{given}.{rank}.pt")
        gc.freeze()  # DeepSpeed collects garbage often: a third of a second each over all that is imported
