"""Checks: what is found is shown once, everywhere, and looking changes nothing."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers.messages import refusal, says
from helpers.two_softmaxes import TwoSoftmaxes as Net
from helpers.two_softmaxes import loader
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Checks, EarlyStopping
from paceline.callbacks.checks import Evidence, check
from paceline.callbacks.checks.observer import Observer
from paceline.callbacks.checks.table import ON_REQUEST, built_in_checks
from paceline.callbacks.loggers.series import read_findings
from paceline.tools.report.page import write_report

FOUND = "softmax-twice"


def fit(module, *callbacks, **settings):
    usual = {"max_epochs": 2, "progress": False, "run_dir": None}
    trainer = Trainer(callbacks=callbacks, **usual | settings)
    trainer.fit(module, loader(1, shuffle=True), loader(2))
    return trainer


def names(checks):
    return [one.name for one in checks.findings]


def test_a_finding_is_shown_once_in_two_lines(tmp_path, capsys):
    trainer = fit(Net(), run_dir=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith("warning:"))
    assert [line for line in lines if FOUND in line] == lines[number : number + 2]
    assert "cross_entropy gets probabilities" in lines[number]
    assert lines[number + 1].endswith(f'if it is meant: callbacks=Checks(skip="{FOUND}")')
    log = (trainer.folder / "log.txt").read_text()
    assert log.count(f"({FOUND})") == 1
    page = write_report([trainer.folder], tmp_path / "report.html").read_text()
    assert "Findings" in page
    assert "cross_entropy gets probabilities" in page
    assert "give it the outputs before the softmax" in page


def test_metrics_jsonl_has_findings_that_are_no_rows(tmp_path):
    def lines_of(trainer):
        lines = (trainer.folder / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if "finding" in line]

    trainer = fit(Net(), run_dir=tmp_path)
    (found,) = lines_of(trainer)
    row = next(row for row in trainer.run.rows if row["step"] > 1)
    position = ["step", "epoch", "time", "samples"]
    assert list(found) == [*position, "finding", "evidence", "cure"]
    assert [found[name] for name in position] == [row[name] for name in position]
    assert found["finding"] == FOUND
    assert "cross_entropy gets probabilities" in found["evidence"]
    assert "the softmax" in found["cure"]
    assert all("finding" not in row for row in trainer.run.rows)
    resumed = Trainer(max_epochs=3, progress=False, run_dir=tmp_path)
    resumed.fit(Net(), loader(1, shuffle=True), loader(2), resume="latest")
    assert resumed.folder == trainer.folder
    assert lines_of(resumed) == [found]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [row["step"] for row in resumed.run.rows] == sorted(row["step"] for row in resumed.run.rows)


def test_metrics_jsonl_has_what_a_test_finds(tmp_path):
    class Tested(Net):
        test_step = Net.validation_step

    trainer = fit(Tested(), EarlyStopping("val/loss"), Checks(skip=FOUND), run_dir=tmp_path)
    trainer.test(Tested(), loader(2))
    (found,) = read_findings(trainer.folder / "metrics.jsonl")
    assert found["finding"] == "selected-on-test"


def test_what_is_meant_is_skipped_by_name(capsys):
    fit(Net(), skipping := Checks(skip=FOUND))
    assert skipping.findings == []
    assert FOUND not in capsys.readouterr().out
    fit(Net(), off := Checks(skip=True))
    assert off.findings == []


def test_a_name_that_no_check_has_is_refused():
    says(refusal(Checks, skip=["softmax-twise"]), "softmax-twise", "did you mean", FOUND)


def test_right_programs_of_the_same_form_are_silent(capsys):
    for last in (nn.Identity(), nn.LogSoftmax(-1)):
        fit(Net(last), checks := Checks())
        assert checks.findings == []
    assert "warning" not in capsys.readouterr().out


def test_what_is_computed_is_the_same_to_the_bit():
    class Attends(Net):
        """A teacher in eval mode, whose layers compute in another way where they are watched."""

        def __init__(self):
            super().__init__(nn.Identity())
            layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
            self.teacher = nn.TransformerEncoder(layer, 1).requires_grad_(False)

        def loss(self, batch):
            with torch.no_grad():
                self.teacher.eval()
                given = self.teacher(batch[0][:, None])[:, 0]
            return super().loss((given, batch[1]))

    class Spectral(Net):
        """A weight that is computed, which moves a vector at each time."""

        def __init__(self):
            super().__init__(nn.Identity())
            torch.manual_seed(1)
            self.net[0] = nn.utils.parametrizations.spectral_norm(self.net[0])
            self.net.insert(1, nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))

    for build in (Net, Attends, Spectral):
        found = []
        for skip in (True, False):
            trainer = fit(module := build(), Checks(skip=skip))
            found.append([*module.state_dict().values(), torch.tensor(trainer.metrics["val/loss"])])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nothing_watches_after_the_fit_or_an_error():
    class Fails(Net):
        def training_step(self, batch):
            if self.trainer.global_step == 2:
                raise ValueError("in a watched step")
            return super().training_step(batch)

    for module in (Net(), Fails()):
        checks = Checks()
        with suppress(ValueError):
            fit(module, checks)
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        noted = len(checks._observer.seen.losses), len(checks._observer.seen.updates)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        F.cross_entropy(module.head(module.net(torch.randn(4, 6))), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()
        assert (len(checks._observer.seen.losses), len(checks._observer.seen.updates)) == noted


def test_an_error_of_a_check_ends_neither_the_run_nor_the_other_checks(tmp_path):
    @check("broken", at="steps")
    def broken(seen):
        raise KeyError("no such fact")

    trainer = fit(Net(), checks := Checks(add=broken), run_dir=tmp_path)
    assert names(checks) == [FOUND]
    assert "the check broken failed" in (trainer.folder / "log.txt").read_text()


class Stray(nn.Module):
    """Has a parameter where torch does not find it."""

    def __init__(self):
        super().__init__()
        self.scale = [nn.Parameter(torch.ones(3))]

    def forward(self, x):
        return torch.softmax(self.scale[0] * x, -1)


WATCHES = [
    "layer_watch.facts_of",
    "function_watch.facts_of",
    "function_watch._first_values",
    "update_watch._norm",
]


@pytest.mark.parametrize("where", WATCHES)
def test_an_error_while_watching_ends_the_watching_alone(where, tmp_path, monkeypatch):
    def fails(*args, **options):
        raise RuntimeError("unknown kind of tensor")

    monkeypatch.setattr(f"paceline.callbacks.checks.{where}", fails)
    trainer = fit(module := Net(last=Stray()), checks := Checks(), run_dir=tmp_path)
    assert trainer.global_step == 12
    assert names(checks) == []
    log = (trainer.folder / "log.txt").read_text()
    assert log.count("checks end here, by an error of their own: RuntimeError: unknown kind of tensor") == 1
    monkeypatch.undo()
    fit(other := Net(last=Stray()), Checks(skip=True))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters(), strict=True))


def test_a_check_of_ones_own():
    @check("late-loss", at="end")
    def late(seen):
        if seen.step >= 12:
            yield Evidence(f"{seen.step} steps were done", "do fewer")

    fit(Net(nn.Identity()), checks := Checks(add=[late]))
    assert [(one.name, one.evidence, one.step) for one in checks.findings] == [
        ("late-loss", "12 steps were done", 12)
    ]
    fit(Net(nn.Identity()), checks := Checks(add=late, skip="late-loss"))
    assert checks.findings == []


def test_each_fit_begins_without_findings():
    checks = Checks()
    trainer = Trainer(max_steps=4, callbacks=checks, progress=False, run_dir=None)
    trainer.fit(Net(), loader(1), loader(2))
    assert names(checks) == [FOUND]
    trainer.fit(Net(nn.Identity()), loader(1, shuffle=True), loader(2))
    assert names(checks) == []


def test_the_catalogue_has_every_finding():
    page = (Path(__file__).parents[3] / "docs" / "guides" / "silent-mistakes.md").read_text()
    headed = {line.strip("# `") for line in page.splitlines() if line.startswith("### `")}
    assert {one.name for one in built_in_checks()} | ON_REQUEST <= headed


@pytest.mark.parametrize("wrong", [3, "hidden", ["no-such"]])
def test_wrong_arguments(wrong):
    with pytest.raises(PacelineError):
        Checks(skip=wrong)


class OnlyMultiplied(torch.Tensor):
    """A weight as quantized ones are: it is multiplied, and knows few other operations."""

    @classmethod
    def of(cls, plain):
        made = plain.as_subclass(cls)
        made.plain = plain
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls.of(args[0].plain)
        if func not in (torch.ops.aten.t.default, torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            raise NotImplementedError(f"{func} of quantized weights")
        return func(*(one.plain if isinstance(one, cls) else one for one in args), **kwargs or {})


def test_weights_that_know_few_operations_end_nothing():
    module = Net(nn.Linear(3, 3))
    module.head[1].weight = nn.Parameter(OnlyMultiplied.of(torch.eye(3)), requires_grad=False)
    assert isinstance(dict(module.named_parameters())["head.1.weight"], OnlyMultiplied)
    checks = Checks()
    assert fit(module, checks).global_step == 12
    assert checks.findings == []
    assert checks.seen.watched == {1, 2, 3, 10}
    assert len(checks.seen.parameters["net.0.weight"].relative) == 10


class Words(TrainModule):
    """A class for each word of rows that end in 0, which fills the inputs up too."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))

    def training_step(self, batch):
        return F.cross_entropy(self.net(batch[0]).flatten(0, 1), batch[1].flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


@pytest.mark.parametrize(("filled_up_by", "found"), [(0, ["padding-in-loss"]), (-100, [])])
def test_an_end_of_the_number_that_fills_up_counts(filled_up_by, found):
    words = torch.randint(1, 12, (80, 10), generator=torch.Generator().manual_seed(0))
    past = torch.arange(10) - torch.randint(4, 10, (80, 1), generator=torch.Generator().manual_seed(1))
    words = words.masked_fill(past >= 0, 0)
    wanted = ((words * 5) % 12).masked_fill(past >= 0, 0).masked_fill(past > 0, filled_up_by)
    trainer = Trainer(max_epochs=1, callbacks=(checks := Checks()), progress=False, run_dir=None)
    trainer.fit(Words(), DataLoader(TensorDataset(words, wanted), 8, shuffle=True))
    assert names(checks) == found


class MappedOverRows(Net):
    """Computes row for row by ``vmap``, inside of which tensors have no values to read."""

    def __init__(self):
        super().__init__(nn.Identity())
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU())

    def loss(self, batch):
        outputs = torch.func.vmap(lambda row: self.head(self.net(row[None]))[0])(batch[0])
        return F.cross_entropy(outputs, batch[1])


def test_layers_that_are_called_by_vmap_end_nothing(monkeypatch):
    failed = []
    monkeypatch.setattr(Observer, "_fail", lambda observer, error: failed.append(error))
    fit(MappedOverRows(), checks := Checks())
    assert failed == []
    assert checks.findings == []
    assert checks.seen.layers["net.0"].first_input is not None


def test_a_batch_with_a_tensor_without_columns_is_looked_at():
    rows = TensorDataset(torch.randn(60, 6), torch.randint(0, 3, (60,)), torch.empty(60, 0))
    trainer = Trainer(max_epochs=2, callbacks=(checks := Checks()), progress=False, run_dir=None)
    trainer.fit(Net(), DataLoader(rows, 10, shuffle=True))
    assert names(checks) == [FOUND]
    assert checks.seen.watched == {1, 2, 3, 10}
