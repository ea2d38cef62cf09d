"""What `paceline check` finds by trying things out: a program without a mistake, and some with one each."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import DataModule, Trainer, TrainModule
from paceline.callbacks import Checks
from paceline.callbacks.checks import Evidence, check
from paceline.callbacks.checks.table import ON_REQUEST, built_in_checks
from paceline.tools.check import examine as module
from paceline.tools.check.examine import check_fit
from paceline.tools.check.probe import Probe, all_probes

COUNT = 160


def rows(seed=0, count=COUNT):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=draws)
    return x, (x[:, :3] + 0.3 * x[:, 3:]).argmax(1)


def loader(x, y, shuffle=True, size=20):
    return DataLoader(TensorDataset(x, y), size, shuffle=shuffle)


class Net(TrainModule):
    def __init__(self, rate=0.02, hidden=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))
        self.rate = rate

    def training_step(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        logits = self.net(batch[0])
        self.log("accuracy", (logits.argmax(1) == batch[1]).float().mean())
        return F.cross_entropy(logits, batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.rate)


def trainer(**options):
    return Trainer(**{"max_epochs": 3, "progress": False, "run_dir": None, "accelerator": "cpu"} | options)


def parts(x, y, cut=120):
    return loader(x[:cut], y[:cut]), loader(x[cut:], y[cut:], shuffle=False, size=40)


def nothing_wrong():
    return Net(), *parts(*rows())


def same_rows():
    x, y = rows()
    return Net(), loader(x, y), loader(x[120:], y[120:], shuffle=False)


def others_labels():
    x, y = rows(count=400)
    return Net(), *parts(x, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))], 280)


def answer_in_a_column():
    x, y = rows()
    x[:, 5] = 2.0 * y - 1
    return Net(), *parts(x, y)


def copies():
    x, y = rows()
    _, val = parts(x, y)
    return Net(), loader(x[:30].repeat(4, 1), y[:30].repeat(4)), val


def dropped():
    x, y = rows(count=280)
    train = DataLoader(TensorDataset(x[:220], y[:220]), 128, shuffle=True, drop_last=True)
    return Net(), train, loader(x[220:], y[220:], shuffle=False)


def in_order():
    x, y = rows()
    return Net(), loader(x[:120], y[:120], shuffle=False), loader(x[120:], y[120:], shuffle=False)


def without_a_class():
    x, y = rows()
    order = y.argsort()
    return Net(), loader(x[order[:100]], y[order[:100]]), loader(x[order[100:]], y[order[100:]])


class Noisy(Dataset):
    def __init__(self, x, y, seed=None):
        self.x, self.y, self.seed = x, y, seed

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if self.seed is not None:
            torch.manual_seed(self.seed)
        return self.x[index] + 0.1 * torch.randn(6), self.y[index]


def noisy_validation():
    x, y = rows()
    return Net(), loader(x[:120], y[:120]), DataLoader(Noisy(x[120:], y[120:]), 40)


def one_noise():
    x, y = rows()
    return Net(), DataLoader(Noisy(x[:120], y[:120], 7), 20, shuffle=True), loader(x[120:], y[120:], False)


def other_scale():
    x, y = rows()
    return Net(), loader(x[:120], y[:120]), loader(100 * x[120:], y[120:], shuffle=False)


def bytes_as_they_are():
    x, y = rows()
    return Net(rate=1e-3), *parts(100 + 100 * x, y)


class Mixing(Net):
    def training_step(self, batch):
        hidden = self.net(batch[0])
        return F.cross_entropy(hidden - hidden.mean(0), batch[1])

    validation_step = training_step


def mixing():
    return Mixing(), *parts(*rows())


class Deep(Net):
    def __init__(self):
        super().__init__()
        block = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), *[block] * 3, nn.Linear(16, 3))


def shared():
    return Deep(), *parts(*rows())


def no_activation():
    module = Net()
    module.net = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 3))
    return module, *parts(*rows())


def frozen_last():
    module = Net()
    module.net[2].requires_grad_(False)
    return module, *parts(*rows())


def too_many_outputs():
    module = Net()
    module.net[2] = nn.Linear(16, 10)
    return module, *parts(*rows())


class Summed(Net):
    def training_step(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1], reduction="sum")


def summed():
    x, y = rows()
    return Summed(rate=0.002), loader(x[:110], y[:110]), loader(x[110:], y[110:], shuffle=False)


class Decayed(Net):
    def __init__(self):
        super().__init__()
        self.net.insert(1, nn.LayerNorm(16))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02, weight_decay=0.2)


def decayed():
    return Decayed(), *parts(*rows())


class Counting(Net):
    seen = right = 0

    def validation_step(self, batch):
        self.right += int((self.net(batch[0]).argmax(1) == batch[1]).sum())
        self.seen += 1
        self.log("right", float(self.right))


def counting():
    return Counting(), *parts(*rows())


class Scored(Net):
    def validation_step(self, batch):
        distance = (self.net(batch[0]).softmax(1) - F.one_hot(batch[1], 3)).square()
        self.log("rmse", distance.mean().sqrt())


def root_of_means():
    x, y = rows(count=300)
    return Scored(), loader(x[:120], y[:120]), loader(x[120:], y[120:], shuffle=False, size=12)


class Adding(Net):
    automatic_optimization = False
    divisor = 1

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.manual_backward(loss if self.divisor == 1 else loss / self.divisor)
        if batch_idx % 3 == 2:
            self.optimizers().step()
            self.optimizers().zero_grad()


class Divided(Adding):
    divisor = 3


def adding():
    return Adding(), *parts(*rows())


PROGRAMS = {
    same_rows: "split-overlap",
    others_labels: "shuffled-targets",
    answer_in_a_column: "target-leak",
    copies: "repeated-samples",
    dropped: "dropped-samples",
    in_order: "no-shuffle",
    without_a_class: "missing-classes",
    noisy_validation: "augmented-validation",
    one_noise: "repeated-augmentation",
    other_scale: "split-shift",
    bytes_as_they_are: "unscaled-inputs",
    mixing: "mixed-rows",
    shared: "shared-weights",
    no_activation: "missing-activation",
    frozen_last: "frozen-output",
    too_many_outputs: "surplus-outputs",
    summed: "sum-reduction",
    decayed: "decay-on-norms",
    counting: "metric-not-reset",
    root_of_means: "batch-means",
    adding: "undivided-accumulation",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_mistake_is_found(program):
    torch.manual_seed(0)
    net, train, val = program()
    report = check_fit(trainer(), net, (train, val, None))
    assert PROGRAMS[program] in {one.name for one in report.findings}, report


def test_nothing_is_found_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net, train, val = nothing_wrong()
    given = trainer(run_dir="runs")
    report = check_fit(given, net, (train, val, None))
    assert (report.findings, report.not_looked_at) == ([], {})
    assert (report.steps, report.is_whole_run) == (18, True)
    assert not list(tmp_path.iterdir())
    assert given.global_step == 0


def test_accumulation_that_divides_is_right():
    train, val = parts(*rows())
    assert check_fit(trainer(), Divided(), (train, val, None)).findings == []


def test_a_finding_that_is_meant_is_left_out():
    net, train, val = in_order()
    report = check_fit(trainer(callbacks=Checks(skip="no-shuffle")), net, (train, val, None))
    assert "no-shuffle" not in {one.name for one in report.findings}


def test_a_check_that_was_added_looks_too():
    @check("always", at="end")
    def always(seen):
        yield Evidence("it is the end", "nothing")

    net, train, val = nothing_wrong()
    report = check_fit(trainer(callbacks=Checks(add=always)), net, (train, val, None))
    assert [one.name for one in report.findings] == ["always"]


class OneForTwo(DataModule):
    def setup(self, stage):
        x, y = rows()
        self.train, self.held = loader(x[:120], y[:120]), loader(x[120:], y[120:], shuffle=False)

    def train_dataloader(self):
        return self.train

    def val_dataloader(self):
        return self.held

    test_dataloader = val_dataloader


def test_test_data_that_chooses_is_found():
    report = check_fit(trainer(), Net(), (None, None, OneForTwo()))
    assert "selected-on-test" in {one.name for one in report.findings}


def test_an_error_of_a_probe_is_listed_and_ends_nothing(monkeypatch):
    def broken(subject):
        raise RuntimeError("no such thing")

    probes = all_probes()
    monkeypatch.setattr(module, "all_probes", lambda: (Probe("no-such-thing", broken), *probes))
    net, train, val = same_rows()
    report = check_fit(trainer(), net, (train, val, None))
    assert "split-overlap" in {one.name for one in report.findings}
    assert report.not_looked_at == {"no-such-thing": "RuntimeError: no such thing"}


def test_a_run_that_is_cut_says_so():
    net, train, val = nothing_wrong()
    endless = partial(trainer, max_epochs=100_000)
    report = check_fit(endless(), net, (train, val, None), seconds=1.0)
    assert not report.is_whole_run
    assert report.steps > 0


def test_names_on_request_are_those_of_probes_alone():
    assert {one.name for one in all_probes()} - {one.name for one in built_in_checks()} == ON_REQUEST
