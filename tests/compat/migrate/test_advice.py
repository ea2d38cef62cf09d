"""What ``paceline migrate`` says is true: what is never called is not, what it writes can be run."""

import runpy

import pytest
import torch
from helpers.small_net import Net, data

from paceline import PacelineError, Trainer
from paceline.callbacks import Callback
from paceline.compat.migrate.analysis import analyse
from paceline.compat.migrate.lightning.names import CALLBACK, MODULE
from paceline.compat.migrate.tables import Group

QUIET = "accelerator='cpu', enable_progress_bar=False, logger=False"


def migrated(path, source):
    """What it says, and the module that is left, run."""
    path.write_text(source)
    report = analyse(path)
    assert report.error is None
    path.write_bytes(report.rewritten)
    return report, runpy.run_path(str(path))


def left(report):
    return [f.name for f in report.findings if f.group is Group.REWRITE and not f.automatic]


def _step(self, batch, *_):
    return Net.training_step(self, batch)


# -- methods ---------------------------------------------------------------------------------------


def called(owner, name, **methods):
    """Whether a run of every kind calls a method of a module or a callback; False where it is refused."""
    found = []

    def method(self, *given, **more):
        found.append(name)
        inherited = getattr(super(cls, self), name, None)
        return inherited(*given, **more) if inherited is not None else given[0] if given else None

    base = Net if owner is MODULE else Callback
    steps = {f"{name}_step": _step for name in ("training", "validation", "test", "predict")}
    loaders = {f"{phase}_dataloader": lambda _: data() for phase in ("train", "val", "test", "predict")}
    cls = type("Own", (base,), (steps | loaders if owner is MODULE else {}) | {name: method})
    if name in steps | loaders:  # the step or loader itself, not one around it
        own = (steps | loaders)[name]
        setattr(cls, name, lambda self, *given: found.append(name) or own(self, *given))
    module = cls() if owner is MODULE else type("Both", (Net,), steps | loaders)()
    callbacks = [cls()] if owner is CALLBACK else []
    trainer = Trainer(max_epochs=1, accelerator="cpu", progress=False, run_dir=None, callbacks=callbacks)
    verbs = (trainer.fit, trainer.validate, trainer.test, trainer.predict)
    if name in NOT_REFUSED or "would never be called" not in owner.methods[name].text:
        for verb in verbs:
            verb(module)
    else:
        with pytest.raises(PacelineError, match="would never be called"):
            trainer.fit(module)
    return bool(found)


METHODS = [(owner, name) for owner in (MODULE, CALLBACK) for name in owner.methods]
NOT_REFUSED = set()
IN_CHECKPOINTS = {"state_dict", "load_state_dict"}  # nothing is saved here
OTHERWISE = {
    "forward",
    "lr_scheduler_step",
    "configure_model",
    "state_key",
}  # they need more than this run has


@pytest.mark.parametrize(("owner", "name"), METHODS)
@pytest.mark.filterwarnings("ignore")
def test_a_method_that_is_never_called_is_not_and_every_other_is(owner, name):
    entry = owner.methods[name]
    if name in IN_CHECKPOINTS | OTHERWISE or entry.new is not None:
        assert "never" not in entry.text
        return
    assert called(owner, name) == ("would never be called" not in entry.text), entry.text


HEAD = """\
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)
        torch.nn.init.ones_(self.net.weight)
        torch.nn.init.zeros_(self.net.bias)
        self.seen = []

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.net(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

{body}

def main():
    m = Net()
    trainer = L.Trainer(max_epochs=2, {quiet})
    trainer.fit(m, DataLoader(TensorDataset(torch.eye(3)), 1))
    return m
"""
BODIES = {
    "plain": """
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step(closure=optimizer_closure)
""",
    "super": """
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.param_groups[0]["lr"] = 0.1
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
""",
    "super by keyword": """
    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: torch.optim.Optimizer,
        closure,
    ) -> None:
        optimizer.param_groups[0]["lr"] = 0.1
        super().optimizer_step(
            epoch=epoch, batch_idx=batch_idx, optimizer=optimizer, optimizer_closure=closure
        )
""",
    "backward": """
    def backward(self, loss, *args, **kwargs):
        super().backward(loss * 10.0, *args, **kwargs)
""",
}


def by_hand():
    net = torch.nn.Linear(3, 1)
    torch.nn.init.ones_(net.weight)
    torch.nn.init.zeros_(net.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for row in [*torch.eye(3), *torch.eye(3)]:
        optimizer.zero_grad()
        net(row[None]).square().mean().backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("name", BODIES)
def test_a_method_of_its_own_trains_as_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report, module = migrated(tmp_path / "p.py", HEAD.format(body=BODIES[name], quiet=QUIET))
    assert left(report) == []
    found = module["main"]().net
    for ours, theirs in zip(found.parameters(), by_hand().parameters(), strict=True):
        assert torch.allclose(ours, theirs)


@pytest.mark.parametrize(
    "body",
    [
        "    def optimizer_step(self, *args, **kwargs):\n        super().optimizer_step(*args, **kwargs)\n",
        "    def optimizer_step(self, epoch, batch_idx, optimizer, closure):\n        print(batch_idx)\n",
        "    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_idx, closure, tpu):\n"
        "        optimizer.step(closure)\n",
    ],
)
def test_an_update_that_is_not_translated_says_how_it_is_called(body, tmp_path):
    path = tmp_path / "p.py"
    path.write_text(HEAD.format(body=body, quiet=QUIET))
    (finding,) = [f for f in analyse(path).findings if f.name == "optimizer_step"]
    assert not finding.automatic
    assert finding.text.startswith("it is called as optimizer_step(self, optimizer, closure) here")


VALIDATES = """
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.net(batch[0]).square().mean())
"""


# -- evaluations after fit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        'trainer.test(ckpt_path="best", verbose=False)',
        'trainer.test(dataloaders=loader, ckpt_path="last", verbose=False)',
        'trainer.test(verbose=False, ckpt_path="best")[0]',
    ],
)
def test_an_evaluation_without_a_module_gets_the_one_that_was_fitted(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loader = "loader = DataLoader(TensorDataset(torch.eye(3)), 1)"
    stop = "callbacks=[L.pytorch.callbacks.ModelCheckpoint(monitor='val_loss')]"
    source = HEAD.format(body=VALIDATES, quiet=f"{QUIET}, {stop}")
    fit = "trainer.fit(m, DataLoader(TensorDataset(torch.eye(3)), 1))"
    then = f"trainer.fit(m, loader, loader)\n    m.test_dataloader = lambda: loader\n    m.found = {call}"
    source = source.replace(fit, f"{loader}\n    {then}")
    report, module = migrated(tmp_path / "p.py", source)
    assert b"verbose" not in report.rewritten
    assert set(module["main"]().found) == {"test/loss"}


# -- values that are known only when it runs ---------------------------------------------------------

VALUES = {
    ("max_steps", "-1"): (None, 5),
    ("max_steps", "3"): (3, 3),
    ("gradient_clip_val", "0"): (None, 5),
    ("gradient_clip_val", "0.0"): (None, 5),
    ("gradient_clip_val", "None"): (None, 5),
    ("gradient_clip_val", "1.5"): (1.5, 5),
    ("callbacks", "None"): ([], 5),
}
NAMES = {"gradient_clip_val": "clip_grad_norm"}


@pytest.mark.parametrize(("name", "value"), VALUES)
@pytest.mark.parametrize("form", ["args.v", "args['v']", "getattr(args, 'v')"])
def test_a_value_of_an_argument_parser_means_what_it_meant(name, value, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = (
        "import lightning as L\n\n\nclass Args(dict):\n"
        f"    v = {value}\n\n\nargs = Args(v={value})\ntrainer = L.Trainer(max_epochs=5, {name}={form})\n"
    )
    report, module = migrated(tmp_path / "p.py", source)
    expected, _ = VALUES[name, value]
    assert left(report) == []
    assert getattr(module["trainer"].settings, NAMES.get(name, name)) == expected


def test_no_limit_of_epochs_beside_a_limit_of_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "import lightning as L\n\nn = -1\ntrainer = L.Trainer(max_epochs=n, max_steps=7)\n"
    report, module = migrated(tmp_path / "p.py", source)
    assert left(report) == []
    assert (module["trainer"].settings.max_epochs, module["trainer"].settings.max_steps) == (None, 7)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("L.pytorch.callbacks.ModelCheckpoint('d', *names)", "Checkpoint('d', *names)"),
        ("L.Trainer(one for one in ())", "Trainer((one for one in ()), max_epochs=1000)"),
        ("f\"{t.callback_metrics['val_loss']:.2f}\"", "f\"{t.metrics['val/loss']:.2f}\""),
        ("f'{t.callback_metrics[\"val_loss\"]}'", "f'{t.metrics[\"val/loss\"]}'"),
    ],
)
def test_what_is_written_stays_python(written, expected, tmp_path):
    path = tmp_path / "p.py"
    path.write_text(f"import lightning as L\n\nt = L.Trainer(max_epochs=1)\nprint({written})\n")
    report = analyse(path)
    assert report.error is None
    assert f"print({expected})" in report.rewritten.decode()
