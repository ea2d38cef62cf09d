"""A config that names a module or a model, and data: built, trained, and the same as hand-written code."""

import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from paceline import PacelineError, Run, Trainer, TrainModule
from paceline.config.load import load

CODE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import DataModule, TrainModule


class Net(TrainModule):
    def __init__(self, width: int = 4, lr: float = 0.1):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        return self.training_step(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Bare(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 2)

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


class MLP(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x):
        return self.net(x)


def points(n: int = 24, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def loaders(batch_size: int = 6) -> tuple[DataLoader, DataLoader]:
    return DataLoader(points(), batch_size), DataLoader(points(seed=1), batch_size)


def named() -> "dict[str, DataLoader]":
    return {"train": DataLoader(points(), 6), "test": DataLoader(points(seed=2), 6)}


def nothing() -> list:
    return 3


class Points(DataModule):
    def __init__(self, n: int = 24):
        self.n = n

    def train_dataloader(self):
        return DataLoader(points(self.n), 6)

    def val_dataloader(self):
        return DataLoader(points(seed=1), 6)


def accuracy(predictions, targets):
    return (predictions.argmax(1) == targets).float().mean()


def smooth(predictions, targets, amount: float = 0.0):
    return nn.functional.cross_entropy(predictions, targets, label_smoothing=amount)


def made() -> Net:
    return Net(5)


def valid() -> dict[str, DataLoader]:
    return {"train": loader(), "valid": loader()}


def five() -> tuple[DataLoader, ...]:
    return (loader(),) * 5


def loader() -> DataLoader:
    return DataLoader(points(), 7)


def count(batch):
    return len(batch[0])


class Duck:
    def train_dataloader(self):
        return loader()


class Full(Net):
    def train_dataloader(self):
        return loader()


class Frozen(Bare):
    def __init__(self):
        super().__init__()
        self.net.weight.requires_grad = False


class FrozenMLP(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.weight.requires_grad = False


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from points()
"""


@pytest.fixture(autouse=True)
def _project(tmp_path, monkeypatch):
    (tmp_path / "project.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("project", None)
    yield
    sys.modules.pop("project", None)


def experiment(text, *settings, target=None):
    with open("c.yaml", "w") as file:
        file.write(textwrap.dedent(text))
    common = ["trainer.progress=false"]
    loaded = load(target or "c.yaml", [] if target is None else ["c.yaml"], [*common, *settings])
    return loaded.recipe.build(loaded.checked())


MODEL = """\
model: {class: project:MLP, width: 5}
loss: cross_entropy
optimizer: {class: AdamW, lr: 1e-2}
scheduler: {class: ExponentialLR, gamma: 0.9}
metrics: {accuracy: project:accuracy}
data: {train: project:points, val: {class: project:points, seed: 1}, batch_size: 6}
trainer: {max_epochs: 2, run_dir: null}
"""


def test_a_model_trains_as_the_code_that_it_stands_for():
    found = experiment(MODEL)
    found.fit()
    project = sys.modules["project"]
    torch.manual_seed(0)
    module = TrainModule.of(
        project.MLP(5),
        nn.functional.cross_entropy,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        {"accuracy": project.accuracy},
    )
    trainer = Trainer(max_epochs=2, run_dir=None, progress=False)
    trainer.fit(
        module, DataLoader(project.points(), 6, shuffle=True), DataLoader(project.points(seed=1), 6)
    )
    for ours, theirs in zip(found.module.parameters(), module.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert found.trainer.metrics["val/accuracy"] == trainer.metrics["val/accuracy"]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("nn.functional.cross_entropy", None),
        ("cross_entropy", 0.0),
        ("CrossEntropyLoss", 0.0),
        ("{class: CrossEntropyLoss, label_smoothing: 0.3}", 0.3),
        ("{class: cross_entropy, label_smoothing: 0.3}", 0.3),
        ("{class: project:smooth, amount: 0.3}", 0.3),
    ],
)
def test_a_loss_is_a_function_or_a_class_with_or_without_arguments(loss, expected):
    text = f"model: project:MLP\nloss: {loss}\noptimizer: SGD\ndata: {{train: project:points}}\n"
    if expected is None:
        with pytest.raises(PacelineError, match="there is no module 'nn'"):
            experiment(text)
        return
    module = experiment(text, "trainer.run_dir=null").module
    logits, targets = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    assert module.loss(logits, targets) == nn.functional.cross_entropy(
        logits, targets, label_smoothing=expected
    )


def test_a_module_by_its_import_path_with_settings_alone():
    found = experiment(
        "{}", "data=project:Points", "module.width=7", "trainer.max_steps=1", target="project:Net"
    )
    run = found.fit()
    assert found.module.net[0].out_features == 7
    assert run.folder.parent.name == "net"
    again = load(str(run.folder)).checked()
    assert again.module == {"class": "project:Net", "width": 7}
    assert again.trainer == {"seed": 0, "max_steps": 1, "progress": False}


def test_the_config_of_a_run_repeats_it_bit_for_bit():
    first = experiment(MODEL, "trainer.run_dir=runs", "trainer.seed=3", "trainer.accumulate=2")
    run = first.fit()
    second = load(str(run.folder / "config.yaml"))
    repeated = second.recipe.build(second.checked())
    again = repeated.fit()
    assert (again.folder.parent, again.folder.name) == (run.folder.parent, "2")
    for ours, theirs in zip(first.module.parameters(), repeated.module.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert Run(again.folder).config["config"] == Run(run.folder).config["config"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("project:loaders", {"train", "val"}),
        ("{class: project:loaders, batch_size: 3}", {"train", "val"}),
        ("project:named", {"train", "test"}),
        ("project:Points", {"datamodule"}),
        ("{class: project:Points, n: 12}", {"datamodule"}),
        ("{train: project:points, test: project:points}", {"train", "test"}),
    ],
)
def test_data_is_a_datamodule_a_function_or_datasets(data, expected):
    found = experiment(f"module: project:Net\ndata: {data}\ntrainer: {{max_steps: 1, run_dir: null}}\n")
    given = {
        name
        for name in ("train", "val", "test", "predict", "datamodule")
        if getattr(found, name) is not None
    }
    assert given == expected
    found.fit()


def test_datasets_become_loaders_as_the_settings_say():
    found = experiment(
        "module: project:Net\n"
        "data: {train: project:points, val: project:points, batch_size: 4, drop_last: true}\n",
        "trainer.run_dir=null",
    )
    assert (found.train.batch_size, found.val.batch_size) == (4, 4)
    assert (found.train.drop_last, found.val.drop_last) == (True, False)
    assert type(found.train.sampler).__name__ == "RandomSampler"
    assert type(found.val.sampler).__name__ == "SequentialSampler"


def test_a_module_without_an_optimizer_gets_that_of_the_config():
    found = experiment(
        """\
        module: project:Bare
        optimizer: {class: SGD, lr: 0.5}
        scheduler: {class: cosine, warmup: 1}
        data: {train: project:points}
        trainer: {max_steps: 2, run_dir: null}
        """
    )
    found.fit()
    assert found.trainer.optimizers[0].param_groups[0]["initial_lr"] == 0.5
    assert found.trainer.global_step == 2


def test_an_optimizer_that_takes_a_module_gets_the_module():
    found = experiment(
        """\
        module: project:Bare
        optimizer: {class: MuonWithAdamW, lr: 0.5, muon: [net.weight], orthogonalisation_dtype: bfloat16}
        data: {train: project:points}
        trainer: {max_steps: 2, run_dir: null}
        """
    )
    found.fit()
    (optimizer,) = found.trainer.optimizers
    assert optimizer.param_groups[0]["orthogonalisation_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: project:Points", "give one of module and model: what is to be trained"),
        ("module: project:Net\nmodel: project:MLP", "give one of module and model, not both"),
        ("module: project:MLP", "MLP is no TrainModule; give it as model"),
        ("module: project:Net\noptimizer: SGD", "Net.configure_optimizers makes its own"),
        ("module: project:Net\nloss: cross_entropy", "is for a model; a module has its own steps"),
        ("model: project:MLP\nscheduler: cosine", "there is no optimizer that it could change"),
        (
            "module: project:Net\ndata: {trian: project:points}",
            "data.trian (c.yaml:2): no such key; did you mean train?",
        ),
        (
            "module: project:Net\ndata: {batch_size: 3}",
            "has none of train, val, test, predict, and no class",
        ),
        (
            "module: project:Net\ndata: {train: project:points, batch_size: 0}",
            "data.batch_size (c.yaml:2): got 0",
        ),
        (
            "module: {class: project:Net, width: wide}",
            "module.width (c.yaml:1): got 'wide'; allowed: a valid integer",
        ),
        ("module: project:Net\ndata: project:nothing", "data: this gives no data"),
        (
            "module: project:points\ndata: project:Points",
            "project:points is not a module; got: a function that returns TensorDataset",
        ),
        (
            "model: project:MLP\nmetrics: {a: project:acuracy}",
            "metrics.a (c.yaml:2): project has no 'acuracy'",
        ),
    ],
)
def test_a_mistake_says_what_to_do(text, said):
    with pytest.raises(PacelineError) as caught:
        experiment(text, "trainer.run_dir=null")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 12


def test_a_function_may_make_the_module():
    assert (
        experiment("module: project:made\ndata: project:Points", "trainer.run_dir=null")
        .module.net[0]
        .out_features
        == 5
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("module: project:Net", "data: there is none"),
        ("model: project:MLP\ndata: null", "data (c.yaml:2): there is none"),
        (
            "module: project:Net\ndata: {train: project:points, collate_fn: project:no}",
            "data.collate_fn (c.yaml:2): project has no 'no'",
        ),
        (
            "model: project:MLP\noptimizer: SGD\nscheduler: {class: wsd, warmup: 5x}\ndata: project:named",
            "scheduler (c.yaml:3): WSD: warmup is not a duration",
        ),
        (
            "model: project:MLP\nmetrics: {loss: project:accuracy}\ndata: project:named",
            "metrics.loss (c.yaml:2): has the name of a value that every step has",
        ),
        (
            "model: project:MLP\nloss: 3\ndata: project:named",
            "loss (c.yaml:2): got 3; allowed: a text: write it in quotes, or a mapping",
        ),
        ("module: exits:Net\ndata: project:named", "module (c.yaml:1): SystemExit: 3 ("),
        ("module: broken:Net\ndata: project:named", "module (c.yaml:1): SyntaxError: "),
        ("module: project:Net\ndata: {train: imports:it}", "data.train (c.yaml:2): ModuleNotFoundError: "),
        ("module: project:Net\ndata: project:valid", "did you mean: val?"),
        ("module: project:Net\ndata: project:Duck", "fix: class Duck(paceline.DataModule)"),
        ("module: project:Net\ndata: project:five", "data: this gives no data"),
        (
            "module: project:Net\ndata: {train: project:points, batch_size: true}",
            "got True; allowed: a number",
        ),
    ],
)
def test_a_mistake_of_the_parts_is_found_before_training(text, said, tmp_path):
    (tmp_path / "exits.py").write_text("import sys\n\nsys.exit(3)\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "imports.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(PacelineError) as caught:
        experiment(text, "trainer.run_dir=null")
    assert said in str(caught.value)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 12
    assert len({line.partition(":")[0] for line in lines}) == len(lines)  # each key once


def test_a_module_with_dataloaders_of_its_own_needs_no_data():
    experiment("module: project:Full\ntrainer: {max_steps: 1, run_dir: null}").fit()


def test_what_a_loss_counts_is_a_function_of_the_batch():
    found = experiment(
        "model: project:MLP\nloss: cross_entropy\noptimizer: SGD\nweight: project:count\n"
        "data: {train: project:points}\ntrainer: {run_dir: null}"
    )
    assert found.module.training_step((torch.zeros(5, 3), torch.zeros(5).long()))["weight"] == 5


@pytest.mark.parametrize(
    "text", ["module: project:Frozen", "model: project:FrozenMLP\nloss: cross_entropy"]
)
def test_frozen_parameters_are_not_given_to_the_optimizer(text):
    found = experiment(
        f"{text}\noptimizer: {{class: SGD, weight_decay: 0.1}}\ndata: {{train: project:points}}\n"
        "trainer: {max_steps: 1, run_dir: null}"
    )
    found.fit()
    (group,) = found.trainer.optimizers[0].param_groups
    assert [one.shape for one in group["params"]] == [(2,)]


def test_a_stream_is_not_shuffled_and_a_dataloader_is_taken_as_it_is():
    found = experiment(
        "module: project:Net\ndata: {train: project:Stream, val: project:loader, batch_size: 2}",
        "trainer.run_dir=null",
    )
    assert type(found.train.dataset).__name__ == "Stream"
    assert found.val.batch_size == 7


def test_data_that_a_verb_lacks_is_that_of_another():
    found = experiment(MODEL)
    trainer, asked = found.trainer, []
    for verb in ("validate", "test", "predict"):
        setattr(trainer, verb, lambda module, data, weights, **more: asked.append(data))
    for verb in ("validate", "test", "predict"):
        found.evaluate(verb, None)
    assert asked == [found.val] * 3
    found.test = [1]
    found.evaluate("test", None)
    found.evaluate("predict", None)
    assert asked[3:] == [[1], [1]]
