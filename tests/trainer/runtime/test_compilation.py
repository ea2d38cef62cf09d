"""compile=...: the same run, the same names, nothing compiled twice, and a module left as it was."""

import copy
import functools
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint
from paceline.trainer.runtime.compilation import read_setting

pytestmark = pytest.mark.launch  # for its length

EAGER = {"backend": "eager"}
HOW = {"whole": {}, "blocks": {"blocks": True}}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x):
        return x + self.last(torch.tanh(self.first(x)))


class Net(TrainModule):
    """Logs in its forward, draws in its dropout, and is evaluated in batches of another size."""

    def __init__(self, bad=None):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.drop, self.head, self.bad = nn.Dropout(0.2), nn.Linear(6, 3), bad

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        self.log("size", x.detach().square().mean())
        return self.head(self.drop(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("twice", 2 * loss.detach())
        return loss * float("nan") if self.bad == self.global_step else loss

    def validation_step(self, batch):
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

    def predict_step(self, batch):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def data(count=50):
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(count, 6, generator=draw), torch.arange(count) % 3)


def fit(folder, compile, resume=None, module=None, evaluated=True, **settings):
    usual = {
        "accelerator": "cpu",
        "progress": False,
        "loggers": ["-tensorboard", "-curves"],
        "max_epochs": 3,
        "accumulate": 2,
    }
    trainer = Trainer(**usual | settings, log_every=2, run_dir=folder, compile=compile)
    module = module or Net()
    evaluation = DataLoader(data(20), 8) if evaluated else None
    trainer.fit(module, DataLoader(data(), 4, shuffle=True), evaluation, resume=resume)
    return trainer, module


def rows(trainer):
    kept = [
        {k: v for k, v in row.items() if not k.startswith(("perf/", "time"))}
        for row in Run(trainer.folder).rows
    ]
    assert len(kept) > 10
    return kept


def log_of(trainer):
    return (trainer.folder / "log.txt").read_text()


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Epochs(Callback):
    """How many graphs there are when each epoch begins."""

    def __init__(self, graphs):
        self.graphs, self.counts = graphs, []

    def on_train_epoch_start(self):
        self.counts.append(len(self.graphs))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Trainer, module and numbers of graphs of the plain run, or of a compiled one; each is made once."""

    @functools.cache
    def of(how):
        torch.compiler.reset()
        graphs = []

        def backend(graph, inputs):  # torch's "eager" is this too
            graphs.append(graph)
            return graph.forward

        module, epochs = Net(), Epochs(graphs)
        module.before = attributes(module)
        setting = {"backend": backend} | HOW[how] if how in HOW else False
        trainer, _ = fit(tmp_path_factory.mktemp(how), setting, module=module, callbacks=[epochs])
        torch.compiler.reset()
        return trainer, module, [*epochs.counts, len(graphs)]

    return of


def attributes(module):
    return {
        name: set(vars(part)) - {"_trainer", "_logger", "before"} for name, part in module.named_modules()
    }


@pytest.mark.parametrize("how", HOW)
def test_it_is_the_same_run_to_the_bit(ran, how):
    (plain, expected, _), (compiled, found, _) = ran("plain"), ran(how)
    assert rows(compiled) == rows(plain)
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert re.search(r"compiled \d+ graphs? .*in \d+\.\d s", log_of(compiled))
    assert "compiled" not in log_of(plain)


class OneBlock(Net):
    """What inductor compiles to C++ in some seconds: one part that is called."""

    def __init__(self):
        super().__init__()
        self.blocks = self.blocks[:1]

    forward = nn.Module.forward

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.blocks[0](batch[0]), batch[1])


@pytest.mark.soak(ci=True)
@pytest.mark.launch  # in processes of its own
def test_inductor_is_the_same_run_but_for_rounding(tmp_path):
    settings = {"evaluated": False, "max_epochs": 1, "max_steps": 2}
    _, expected = fit(tmp_path / "plain", False, module=OneBlock(), **settings)
    # Which instructions the CPU has is found out by compiling for each.
    quick = {"compile_threads": 1, "cpp.simdlen": 1, "cpp.vec_isa_ok": True}
    compiled, found = fit(tmp_path / "compiled", {"options": quick}, module=OneBlock(), **settings)
    assert re.search(r"step 1: compiled \d graphs?", log_of(compiled))
    moved = 0
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=0, atol=1e-5)
        moved += not torch.equal(value, OneBlock().state_dict()[name])
    assert moved == 4


@pytest.mark.soak  # inductor compiles C++ for most of a minute
@pytest.mark.launch
def test_inductor_is_the_same_run_by_blocks_that_log_and_draw(tmp_path):
    _, expected = fit(tmp_path / "plain", False, max_epochs=1)
    compiled, found = fit(tmp_path / "compiled", {"blocks": True}, max_epochs=1)
    assert "compiled" in log_of(compiled)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=0, atol=1e-5)


@pytest.mark.soak  # strategies/test_compile_on_ranks.py resumes on ranks either way
def test_names_in_checkpoints_are_the_module_s_own_and_runs_continue_either_way(tmp_path):
    _, expected = fit(tmp_path / "whole", EAGER)
    for first, then in ((EAGER, EAGER), (EAGER, False), (False, EAGER)):
        folder = tmp_path / f"{bool(first)}-{bool(then)}"
        cut, _ = fit(folder, first, max_epochs=1, callbacks=[Checkpoint()])
        saved = Run(cut.folder).load
        assert saved is not None
        _, found = fit(folder, then, resume="latest")
        for name, value in expected.state_dict().items():
            assert torch.equal(found.state_dict()[name], value), name
    assert not any("_orig_mod" in name for name in expected.state_dict())


def test_the_module_is_left_as_it_was(ran):
    for how in HOW:
        _, module, _ = ran(how)
        assert attributes(module) == module.before
        assert not any(part._compiled_call_impl for part in module.modules())
        assert not any("_orig_mod" in name for name in module.state_dict())
        copy.deepcopy(module)
    handler = torch._dynamo.callback.callback_handler
    assert handler.start_callbacks == handler.end_callbacks == []


def test_one_that_the_user_compiled_stays_compiled(tmp_path):
    module = Net()
    module.head.compile(backend="eager")
    mine = module.head._compiled_call_impl
    fit(tmp_path, EAGER, module=module, max_epochs=1, max_steps=1, evaluated=False)
    assert module.head._compiled_call_impl is mine


def test_blocks_compile_once_and_nothing_is_compiled_after_the_first_epoch(ran):
    _, _, (_, *later) = ran("blocks")
    # Training and evaluation; the last batch has another size, and so have those of evaluation.
    assert 1 <= later[0] <= 4
    assert later == later[:1] * 3


def test_logging_does_not_compile_again(ran):
    _, _, (_, *later) = ran("whole")
    assert later[0] >= 1
    assert later == later[:1] * 3


def test_evaluation_and_prediction_alone(tmp_path):
    module = Net()
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": tmp_path}
    plain, compiled = Trainer(**usual), Trainer(**usual, compile=EAGER)
    loader = DataLoader(data(16), 8)
    assert compiled.validate(module, loader) == plain.validate(module, loader)
    pairs = zip(compiled.predict(module, loader), plain.predict(module, loader), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_what_is_not_finite_is_found_in_the_code_as_it_is_written(tmp_path):
    class Bad(Net):
        def forward(self, x):
            return super().forward(x) + (self.head(x) * float("nan") if self.global_step == 1 else 0)

    with pytest.raises(PacelineError, match="the loss is nan") as caught:
        fit(tmp_path, EAGER, module=Bad(), evaluated=False)
    assert "step 2" in str(caught.value)


def test_blocks_that_are_not_there(tmp_path):
    class Flat(Net):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block()])

    with pytest.raises(PacelineError, match="found no repeated blocks"):
        fit(tmp_path, "blocks", module=Flat())


def test_settings():
    assert read_setting(True) == ({}, False)
    assert read_setting("blocks") == ({}, True)
    assert read_setting("max-autotune") == ({"mode": "max-autotune"}, False)
    assert read_setting({"dynamic": True, "blocks": True}) == ({"dynamic": True}, True)
    for wrong in ("fast", {}, {"modes": 1}, {"blocks": "yes"}, 1, None):
        with pytest.raises(ValueError, match=r".*"):
            read_setting(wrong)


def test_a_mistake_is_answered_at_construction():
    with pytest.raises(PacelineError, match="did you mean 'blocks'"):
        Trainer(compile="block")


class OfTorch(Net):
    """Parts and blocks whose forward is torch's own; nothing of the module itself is called."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
        self.net = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6))

    forward = nn.Module.forward

    def training_step(self, batch, batch_idx):
        x = self.net(batch[0])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x), batch[1])

    def validation_step(self, batch):
        self.log("loss", self.training_step(batch, 0))


@pytest.mark.parametrize("how", HOW)
def test_modules_of_torch_itself_are_compiled_too(tmp_path, how):
    settings = {"max_epochs": 1, "max_steps": 2, "evaluated": False}
    _, expected = fit(tmp_path / "plain", False, module=OfTorch(), **settings)
    compiled, found = fit(tmp_path / "compiled", EAGER | HOW[how], module=OfTorch(), **settings)
    assert re.search(r"step \d+: compiled \d+ graphs?", log_of(compiled))
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert not any("forward" in vars(part) for part in found.modules())


def test_blocks_of_torch_itself_share_a_graph_and_copies_are_their_own(tmp_path):
    graphs, copies = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    class Copying(OfTorch):
        def on_step_end(self, trainer):
            copies.append(copy.deepcopy(self))

    fit(tmp_path, {"backend": backend, "blocks": True}, module=Copying(), max_steps=1, max_epochs=1)
    assert (
        1 <= len(graphs) <= 3
    )  # of the first block, whose input has no gradient, of others, and of evaluation
    with torch.no_grad():
        for parameter in copies[0].parameters():
            parameter.zero_()
    assert copies[0].blocks[0](torch.ones(1, 6)).abs().sum() == 0
