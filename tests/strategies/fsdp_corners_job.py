"""Trains small models of the kinds that sharding trips over, and writes down what it saw.

python fsdp_corners_job.py DEVICES FOLDER NAME...   -> FOLDER/NAME.RANK.pt for each case and rank

The tests import this file too: ``observe(name, 1, folder, Single())`` is the same case on one device.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint, Freeze
from paceline.strategies import HSDP, Full

GLOBAL, STEPS, STOP, SAMPLES = 16, 5, 3, 59  # an epoch's last step takes 11 samples
WORDS, LENGTH, WIDTH = 13, 4, 8


# -- models ------------------------------------------------------------------------------------


class Norm(nn.Module):
    """Computes in the dtype of its weight, whatever it is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.7, 1.3, WIDTH))

    def forward(self, x):
        return F.rms_norm(x.to(self.weight.dtype), (WIDTH,), self.weight).to(x.dtype)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = Norm()

    def forward(self, x):
        hidden = self.words(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden)


class Base(TrainModule):
    """Predicts each word's successor."""

    def __init__(self, **options: Any):
        super().__init__()
        self.options = options
        self.encoder = Encoder()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.build()

    def build(self):
        pass

    def loss(self, hidden, x):
        logits = self.head(hidden[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).double(), x[:, 1:].flatten())

    def training_step(self, batch):
        return self.loss(self.encoder(batch[0]), batch[0])

    def validation_step(self, batch):
        return self.training_step(batch)

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad or self.options.get("all")]
        return torch.optim.AdamW(trained, lr=0.02, eps=1e-3, weight_decay=0.1)


class Mixed(Base):
    """As it comes: norms in float32, all else in another dtype."""

    def build(self):
        self.to(self.options.get("dtype", torch.float64))
        for part in self.modules():
            if isinstance(part, Norm):
                part.float()


class Scaled(nn.Module):
    """Owns a parameter, and has children of another dtype."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.line = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x):
        return self.line(x) * self.scale


class InnerMixed(Base):
    """A dtype within another one; an embedding and a head of one dtype, in one group with blocks."""

    def build(self):
        self.double()
        self.scaled = nn.ModuleList(Scaled() for _ in range(2))

    def training_step(self, batch):
        hidden = self.encoder(batch[0])
        for scaled in self.scaled:
            hidden = hidden + scaled(hidden)
        return self.loss(hidden, batch[0])


class OwnMixed(Base):
    """A block whose own parameters have two dtypes: they cannot be apart from each other."""

    def build(self):
        self.double()
        for block in self.encoder.blocks:
            block.shift = nn.Parameter(torch.zeros(WIDTH, dtype=torch.float32))
            block.gain = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))


class Tied(Base):
    def build(self):
        self.head.weight = self.encoder.words.weight


class TiedMixed(Tied):
    """The table in float32, the rest in float64."""

    def build(self):
        super().build()
        self.double()
        self.head.float()

    def training_step(self, batch):
        x, encoder = batch[0], self.encoder
        hidden = encoder.words(x).double()
        for block in encoder.blocks:
            hidden = block(hidden)
        return self.loss(encoder.norm(hidden).float(), x)


class Views(Base):
    """Two views through the same blocks, and a frozen teacher that is called twice."""

    def build(self):
        self.teacher = copy.deepcopy(self.encoder).requires_grad_(False)
        with torch.no_grad():
            for parameter in self.teacher.parameters():
                parameter.mul_(1.1)

    def training_step(self, batch):
        x = batch[0]
        views = x, x.flip(1)
        with torch.no_grad():
            targets = [self.teacher(view) for view in views]
        found = [self.encoder(view) for view in views]
        apart = sum((a - b).square().mean() for a, b in zip(found, reversed(targets), strict=True))
        return apart + self.loss(found[0], x)


class Followed(Views):
    """The teacher follows the student after each step, shard by shard."""

    def on_step_end(self, trainer):
        with torch.no_grad():
            pairs = zip(self.teacher.parameters(), self.encoder.parameters(), strict=True)
            for teacher, student in pairs:
                teacher.lerp_(student, 0.25)


class Adapted(nn.Module):
    """A frozen layer and a trained one of low rank beside it."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class LowRank(Base):
    def build(self):
        self.requires_grad_(False)
        for block in self.encoder.blocks:
            block.inner, block.outer = Adapted(block.inner), Adapted(block.outer)

    def on_before_optimizer_step(self, trainer):
        self.options["norms"].append(sum(
            g.square().sum().item() for g in trainer.strategy.weights.full_gradients(self).values()
        ) ** 0.5)  # fmt: skip


class LowRankInFloat(LowRank):
    """What is trained in float32, what is frozen in float64."""

    def build(self):
        super().build()
        for parameter in self.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.double()
        for part in self.modules():
            if isinstance(part, Adapted):
                part.down.float(), part.up.float()
                part.forward = _in_float(part)


def _in_float(part: Adapted) -> Callable[[Any], Any]:
    return lambda x: part.layer(x) + part.up(part.down(x.float())).double()


class Buffers(nn.Module):
    """Buffers of every kind that are in no checkpoint; ``reset_parameters`` fills them."""

    def __init__(self, shared: nn.Module | None = None):
        super().__init__()
        self.line = nn.Linear(WIDTH, WIDTH)
        kept = {"persistent": False}
        self.register_buffer("angles", torch.empty(WIDTH), **kept)
        self.register_buffer("mask", torch.empty(LENGTH, LENGTH, dtype=torch.bool), **kept)
        self.register_buffer("turns", torch.empty(WIDTH // 2, dtype=torch.complex64), **kept)
        self.register_buffer("counts", torch.empty(3, dtype=torch.int32), **kept)
        self.reset_parameters()

    def reset_parameters(self):
        self.angles.copy_(torch.arange(WIDTH) / 7)
        self.mask.copy_(torch.ones(LENGTH, LENGTH).tril().bool())
        self.turns.copy_(torch.polar(torch.ones(WIDTH // 2), torch.arange(WIDTH // 2) / 3))
        self.counts.copy_(torch.arange(3))

    def forward(self, x):
        mixed = self.mask.to(x.dtype) @ self.line(x) / LENGTH
        turned = torch.view_as_complex(mixed.float().unflatten(-1, (-1, 2))) * self.turns
        return x + mixed * self.angles + torch.view_as_real(turned).flatten(-2).to(x.dtype)


class Buffered(Base):
    def build(self):
        self.turning = nn.ModuleList(Buffers() for _ in range(2))

    def training_step(self, batch):
        hidden = self.encoder(batch[0])
        for part in self.turning:
            hidden = part(hidden)
        return self.loss(hidden, batch[0])


class LateBuffered(Buffered):
    def __init__(self, **options: Any):
        TrainModule.__init__(self)
        self.options = options

    def configure_model(self):
        self.encoder = LateEncoder()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.build()


class LateNorm(Norm):
    def reset_parameters(self):
        with torch.no_grad():
            self.weight.copy_(torch.linspace(0.7, 1.3, WIDTH))


class LateEncoder(Encoder):
    def __init__(self):
        super().__init__()
        self.norm = LateNorm()
        for block in self.blocks:
            block.norm = LateNorm()


class Forgotten(nn.Linear):
    """Its reset fills the parameters alone."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.register_buffer("angles", torch.arange(WIDTH) / 7, persistent=False)


class LateForgotten(LateBuffered):
    def configure_model(self):
        super().configure_model()
        self.forgotten = Forgotten()


class Layer(Block):
    """Of a model that names the class of its layers."""


class Pretrained(nn.Module):
    """As Hugging Face's models say it; the layers are in no list."""

    _no_split_modules = ("Layer",)

    def __init__(self):
        super().__init__()
        self.one, self.between, self.other = Layer(), nn.Linear(WIDTH, WIDTH), Layer()

    def forward(self, x):
        return self.other(self.between(self.one(x)))


class Named(Base):
    def build(self):
        self.encoder.blocks = nn.ModuleList([Pretrained()])


# -- cases -------------------------------------------------------------------------------------


@dataclass
class Case:
    """A model, the strategy it runs under, and what else the Trainer gets.

    Args:
        stops: Train to step ``STOP``, then resume in a new module.
        frozen: Parameters that are trained from step 4 on.
    """

    model: Callable[..., TrainModule]
    strategy: Callable[[], Any] | str = "fsdp"
    options: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    stops: bool = False
    frozen: str | None = None


def kept_norms() -> Full:
    return Full("bf16-true", keep_fp32=[Norm])


AS_IT_IS = {"precision": "32"}  # converts nothing
CLIPPED = {"clip_grad_norm": 0.05}
IN_BFLOAT16 = {"dtype": torch.bfloat16}
CASES = {
    "mixed": Case(Mixed, trainer=AS_IT_IS | CLIPPED, stops=True),
    "mixed-value": Case(Mixed, trainer=AS_IT_IS | {"clip_grad_value": 0.01}),
    "mixed-hsdp": Case(Mixed, lambda: HSDP(replicate=2), trainer=AS_IT_IS | CLIPPED),
    "mixed-bf16": Case(Mixed, options=IN_BFLOAT16, trainer=AS_IT_IS | CLIPPED),
    "mixed-bf16-sums": Case(Mixed, options=IN_BFLOAT16, trainer=AS_IT_IS),
    "mixed-bf16-sums-ddp": Case(Mixed, "ddp", options=IN_BFLOAT16, trainer=AS_IT_IS),
    "mixed-inner": Case(InnerMixed, trainer=AS_IT_IS | CLIPPED),
    "mixed-unfrozen": Case(Mixed, options={"all": True}, trainer=AS_IT_IS | CLIPPED, frozen="*norm*"),
    "mixed-own": Case(OwnMixed, trainer=AS_IT_IS),
    "mixed-tied": Case(TiedMixed, trainer=AS_IT_IS | CLIPPED),
    "mixed-frozen": Case(LowRankInFloat, trainer=AS_IT_IS | CLIPPED),
    "tied": Case(Tied, stops=True, trainer=CLIPPED),
    "whole": Case(Base),
    "views": Case(Views, trainer=CLIPPED),
    "followed": Case(Followed),
    "low-rank": Case(LowRank, trainer=CLIPPED, stops=True),
    "buffers": Case(Buffered),
    "buffers-late": Case(LateBuffered, stops=True),
    "buffers-forgotten": Case(LateForgotten),
    "no-split": Case(Named),
}
KEPT = {
    "kept-fsdp": Case(Base, trainer={"precision": kept_norms()}, stops=True),
    "kept-ddp": Case(Base, "ddp", trainer={"precision": kept_norms()}),
}


# -- observing ---------------------------------------------------------------------------------


class Watch(Callback):
    """What can be seen of the sharded module while it trains."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def on_fit_start(self, trainer):
        module = trainer.module
        self.seen["first"] = cloned(trainer.strategy.weights.full_tensors(module))
        self.seen["units"] = [n for n, m in module.named_modules() if type(m).__name__.startswith("FSDP")]
        self.seen["whole"] = [
            n for n, p in module.named_parameters() if not trainer.strategy.weights.is_sharded(p)
        ]
        self.seen["started at"] = trainer.global_step

    def on_step_end(self, trainer):
        names = {p: n for n, p in trainer.module.named_parameters()}
        (optimizer,) = trainer.optimizers
        states = {names[p]: state for p, state in optimizer.state.items() if state}
        self.seen["moments"] = {name: state["exp_avg"].dtype for name, state in states.items()}


def cloned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone() for n, t in tensors.items()}


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    first, pace = (torch.randint(1, WORDS, (SAMPLES, 1), generator=draw) for _ in range(2))
    return TensorDataset((first + pace * torch.arange(LENGTH)) % WORDS)


def built(case: Case) -> TrainModule:
    torch.manual_seed(3)
    return case.model(**case.options, norms=[])


def fit(case: Case, name: str, devices: int, folder: Path, given: Any, module: Any, **more: Any) -> Any:
    watch = Watch()
    freeze = [] if case.frozen is None else [Freeze(case.frozen, until="3st")]
    trainer = Trainer(
        strategy=given,
        accelerator="cpu",
        devices=devices,
        global_batch_size=GLOBAL,
        callbacks=[watch, Checkpoint(every=1000), *freeze],
        run_dir=folder / "runs",
        name=name,
        sanity_val_batches=0,
        limit_val_batches=1,
        progress=False,
        loggers=False,
        **{"precision": "64", "max_steps": STEPS, **case.trainer, **more.pop("trainer", {})},
    )
    loader = DataLoader(data(), GLOBAL if devices == 1 else 4, shuffle=True)
    trainer.fit(module, loader, loader, **more)
    return trainer, watch.seen


def observe(name: str, devices: int, folder: Path, strategy: Any = None) -> dict[str, Any]:
    """Train a case and say what there was to see."""
    case = (CASES | KEPT)[name]
    given = case.strategy() if callable(case.strategy) else case.strategy
    given = given if strategy is None else strategy
    module = built(case)
    found: dict[str, Any] = {"error": None}
    try:
        trainer, found["seen"] = fit(case, name, devices, folder, given, module)
        found["latest"] = str(trainer.run.latest)
        found["weights"] = cloned(trainer.strategy.weights.full_tensors(module))
        found["buffers"] = cloned(dict(module.named_buffers()))
        found["norms"] = module.options["norms"]
        found["ties"] = module.head.weight is module.encoder.words.weight
        if name == "tied" and devices > 1:
            trainer.export(folder / f"{name}-exported")
            found["read again"] = read_again(trainer, module, folder / f"{name}-exported")
        if case.stops and devices > 1:
            fit(case, f"{name}-cut", devices, folder, given, built(case), trainer={"max_steps": STOP})
            again = built(case)
            resumed, seen = fit(case, f"{name}-cut", devices, folder, given, again, resume="latest")
            found["resumed"] = cloned(resumed.strategy.weights.full_tensors(again))
            found["resumed buffers"] = cloned(dict(again.named_buffers()))
            found["resumed at"], found["resumed moments"] = seen["started at"], seen["moments"]
        if name == "whole" and devices > 1:
            found |= load_whole(trainer, module, folder / "weights.pt")
    except Exception as error:
        found["error"] = str(error) if isinstance(error, PacelineError) else f"{type(error)} {error}"
    return found


def read_again(trainer: Any, module: TrainModule, path: Path) -> dict[str, torch.Tensor]:
    """The module's tensors after weights that it does not have by now were read from a file or folder."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(-1)
    trainer.validate(module, DataLoader(data(), 4), weights=path)
    return cloned(trainer.strategy.weights.full_tensors(module))


def load_whole(trainer: Any, module: TrainModule, path: Path) -> dict[str, Any]:
    """Whole state dicts by key into the sharded module: in any order, then with wrong keys."""
    strategy = trainer.strategy
    kept = cloned(strategy.weights.full_tensors(module))
    given = {name: i + torch.rand(value.shape).double() for i, (name, value) in enumerate(kept.items())}
    given = trainer.ranks.broadcast(given)
    found: dict[str, Any] = {"given": given, "read": [], "refused": []}

    def read(values: dict[str, Any]) -> dict[str, torch.Tensor]:
        if trainer.is_global_zero:
            torch.save(values, path)
        trainer.ranks.barrier()
        return read_again(trainer, module, path)

    for names in (list(given), sorted(given, reverse=True)):
        found["read"].append(read({name: given[name] for name in names}))
    lacking = {n: v for n, v in given.items() if n != "encoder.blocks.1.inner.weight"}
    wrong = lacking | {"encoder.blocks.7.inner.weight": given["encoder.blocks.1.inner.weight"]}
    for load in (read, lambda values: strategy.weights.load_module(module, values)):
        before = cloned(strategy.weights.full_tensors(module))
        try:
            load(wrong)
        except Exception as error:
            found["refused"].append(str(error))
        after = strategy.weights.full_tensors(module)
        found["refused"].append(all(torch.equal(after[n].abs(), before[n].abs()) for n in before))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    for one in sys.argv[3:]:
        result = observe(one, int(sys.argv[1]), place)
        torch.save(result, place / f"{one}.{torch.distributed.get_rank()}.pt")
