"""Mistakes of people who are new to the trainer, written down before their answers were known.

Each is a program with one mistake. Its answer is an error, before the first update unless the mistake can
only be seen later, that names what is wrong and what was meant: every expression is found in it. What can
be meant, and mostly is not, is answered with a line that is printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import trainers
from helpers.right_net import Net, Validated, samples, sgd, tensors
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset
from typer.testing import CliRunner

from paceline import DataModule, Trainer, TrainModule
from paceline.__main__ import app
from paceline.callbacks import Callback, Checkpoint, EarlyStopping, Freeze, LambdaCallback
from paceline.parameter_groups import decay_groups, layer_groups
from paceline.schedules import Cosine


class Mistake(NamedTuple):
    program: Callable[[], Any]
    expected: tuple[str, ...]
    """Expressions that the answer matches."""
    printed: bool
    """The answer is printed; no error is raised."""
    late: bool
    """Only a trained step can show it."""


MISTAKES: list[Any] = []


def mistake(
    *expected: str, printed: bool = False, late: bool = False
) -> Callable[[Callable[[], Any]], Any]:
    """A program with a mistake, and what its answer says."""

    def keep(program: Callable[[], Any]) -> Callable[[], Any]:
        MISTAKES.append(pytest.param(Mistake(program, expected, printed, late), id=program.__name__))
        return program

    return keep


def quiet(**arguments):
    return trainers.quiet(**{"max_epochs": 1} | arguments)


def fit(base: type = Net, data: Any = None, val: Any = None, trainer: Any = None, **methods: Any) -> None:
    """Train a module with these methods in the place of its own."""
    module = type("Mine", (base,), methods)()
    (trainer or quiet()).fit(module, samples() if data is None else data, val)


def optimized(function: Callable[[Any], Any], base: type = Net) -> None:
    fit(base, configure_optimizers=function)


def paceline(*arguments):
    """A command, in this process."""
    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code:
        raise RuntimeError(done.output)
    return done.output


# -- Trainer -------------------------------------------------------------------------------------


@mistake("max_epochs", "name|keyword", "got: 5")
def epochs_without_their_name():
    Trainer(5)


@mistake("callbacks", "EarlyStopping", r"EarlyStopping\(|instance|called")
def class_in_the_place_of_a_callback():
    quiet(callbacks=[EarlyStopping])


@mistake("callbacks", "monitor", r"EarlyStopping\(")
def callback_by_name():
    quiet(callbacks=["early_stopping"])


@mistake("validate_every", r"0\.25ep")
def validation_each_quarter_of_an_epoch():
    quiet(validate_every=0.25)


@mistake("devices", "cuda:0", "accelerator|'0'|\\[0\\]|\"0\"")
def device_of_torch():
    quiet(devices="cuda:0")


@mistake("batch_size", "global_batch_size", "DataLoader|loader")
def batch_size_of_the_trainer():
    quiet(batch_size=32)


@mistake("lr", "configure_optimizers")
def learning_rate_of_the_trainer():
    quiet(lr=0.1)


@mistake("max_time", "3600", r'"3600s"|"1h"|"60min"')
def seconds_as_a_number():
    quiet(max_time=3600)


@mistake("limit_train_batches", r"got 50\.0", r"did you mean 50\?")
def fifty_batches_with_a_point():
    quiet(limit_train_batches=50.0)


@mistake("precision", "bfloat16", "did you mean 'bf16'")
def dtype_of_torch():
    quiet(precision=torch.bfloat16)


# -- calls ---------------------------------------------------------------------------------------


@mistake("fit", "Net", r"Net\(\.*\)|instance|object")
def class_in_the_place_of_the_module():
    quiet().fit(Net, samples())


@mistake("train_dataloader", "TensorDataset", r"DataLoader\(")
def dataset_in_the_place_of_a_loader():
    quiet().fit(Net(), TensorDataset(*tensors()))


@mistake("train_dataloader", "Tensor", r"DataLoader\(", "TensorDataset")
def tensors_in_the_place_of_a_loader():
    quiet().fit(Net(), tensors())


@mistake("fit", "epochs", r"Trainer\(max_epochs=")
def epochs_of_the_call():
    quiet().fit(Net(), samples(), epochs=10)


@mistake("train", r"\bfit\b")
def train_of_the_trainer():
    quiet().train(Net(), samples())


@mistake("'fit'", r"Trainer\(.*\)\.fit\(")
def fit_of_the_module():
    Net().fit(samples())


@mistake("test_step", "Validated", "def test_step|define|write|add")
def evaluation_without_a_step():
    quiet().test(Validated(), samples())


@mistake("datamodule", "DataLoader", "train_dataloader")
def loader_in_the_place_of_a_datamodule():
    quiet().fit(Net(), datamodule=samples())


@mistake("train_dataloader|dataloader", "method|function", r"\(\)|call")
def loader_method_that_is_not_called():
    class Data(DataModule):
        def train_dataloader(self):
            return samples()

    quiet().fit(Net(), Data().train_dataloader)


# -- modules -------------------------------------------------------------------------------------


@mistake("training_step", "did you mean|train_step.*training_step|training_step.*train_step")
def another_name_for_the_training_step():
    class Mine(Net):
        training_step = TrainModule.training_step

        def train_step(self, batch):
            return self.loss(batch)

    quiet().fit(Mine(), samples())


@mistake("configure_optimizers", "configure_optimizer[^s]")
def another_name_for_configure_optimizers():
    class Mine(Net):
        configure_optimizers = TrainModule.configure_optimizers

        def configure_optimizer(self):
            return sgd(self)

    quiet().fit(Mine(), samples())


@mistake("training_step", "self")
def step_without_self():
    def training_step(batch):
        return batch[0].mean()

    fit(training_step=training_step)


@mistake("backward", "automatic_optimization|the Trainer (calls|does)|is called for you|remove|without")
def backward_in_the_step():
    def step(self, batch):
        loss = self.loss(batch)
        loss.backward()
        return loss

    fit(training_step=step)


@mistake("optimizers", "automatic_optimization")
def update_in_the_step():
    def step(self, batch):
        loss = self.loss(batch)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss

    fit(training_step=step)


@mistake("ModuleList")
def layers_in_a_list():
    class Mine(Net):
        def __init__(self):
            super().__init__()
            del self.net
            self.layers = [nn.Linear(4, 2)]

        def training_step(self, batch):
            return cross_entropy(self.layers[0](batch[0]), batch[1])

    quiet().fit(Mine(), samples())


@mistake(r"Mine\.device", "leave it out", r"self\.device")
def attribute_that_the_module_has():
    class Mine(Net):
        def __init__(self):
            super().__init__()
            self.device = torch.device("cpu")

    quiet().fit(Mine(), samples())


@mistake("save_hyperparameters", "hparams")
def hyperparameters_as_elsewhere():
    class Mine(Net):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()

    quiet().fit(Mine(), samples())


@mistake("on_train_epoch_end", "trainer", "outputs", late=True)
def outputs_of_the_epoch():
    def on_train_epoch_end(self, outputs):
        torch.stack([one["loss"] for one in outputs])

    fit(on_train_epoch_end=on_train_epoch_end)


# -- optimizers, schedules, parameter groups -----------------------------------------------------


@mistake("lr_scheduler", "'scheduler'|scheduler:")
def key_of_the_schedule():
    def both(self):
        optimizer = sgd(self)
        return {"optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    optimized(both)


@mistake("schedule", "None", r"\[1\]|item 1|second|place")
def list_of_schedules_with_none():
    def both(self):
        optimizer = sgd(self)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1), None]

    optimized(both)


@mistake("LambdaLR", "function")
def function_as_a_schedule():
    optimized(lambda self: {"optimizer": sgd(self), "lr_scheduler": lambda step: 0.9**step})


@mistake("drives an optimizer that was not returned", "StepLR")
def schedule_of_another_optimizer():
    def both(self):
        return sgd(self), torch.optim.lr_scheduler.StepLR(sgd(self), 1)

    optimized(both)


@mistake("warmup", r"0\.1", '"10%"|"10.0%"|10%')
def warmup_as_a_fraction():
    Cosine(warmup=0.1)


@mistake("OneCycleLR", "interval", "step", printed=True)
def schedule_for_steps_that_steps_each_epoch():
    def both(self):
        optimizer = sgd(self)
        total = self.trainer.total_steps
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total)

    optimized(both)


@mistake("decay_groups", "module", "generator|parameters")
def parameters_in_the_place_of_the_module():
    decay_groups(Net().parameters(), weight_decay=0.1)


@mistake("layers", "bodi", "body|did you mean")
def misspelt_layers():
    layer_groups(nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 2))}), 0.1, 0.5, layers="bodi")


# -- data ----------------------------------------------------------------------------------------


@mistake("loader", r"\[1\]|item 1|second|place", "TensorDataset")
def dataset_among_loaders():
    fit(data=[samples(), TensorDataset(*tensors())])


@mistake("val", "noisy", "None")
def none_among_validation_loaders():
    fit(Validated, val={"clean": samples(), "noisy": None})


@mistake("no (samples|batches|data)|empty|0 samples", "train", "drop_last|len|dataset|data")
def empty_dataset():
    fit(data=DataLoader(TensorDataset(torch.zeros(0, 4), torch.zeros(0)), batch_size=4))


@mistake("16|sampler", "100|index|out of", "sampler")
def sampler_of_another_dataset():
    fit(data=samples(sampler=SubsetRandomSampler(range(50, 100))))


@mistake("generator", "epoch|once|again", "DataLoader", late=True)
def generator_as_a_loader():
    fit(data=(batch for batch in samples()), trainer=quiet(max_epochs=2))


@mistake("train_loader", "train_dataloader")
def misspelt_loader_of_a_datamodule():
    class Data(DataModule):
        def train_loader(self):
            return samples()

    quiet().fit(Net(), datamodule=Data())


@mistake("collate|batch", "size", r"\[3\]|\[2\]|shape|length")
def samples_of_several_lengths():
    class Texts(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.zeros(2 + index % 3), 0

    fit(data=DataLoader(Texts(), batch_size=4))


# -- logging, callbacks --------------------------------------------------------------------------


@mistake("log", "log_dict")
def a_mapping_to_log():
    def step(self, batch):
        self.log({"accuracy": 0.5})
        return self.loss(batch)

    fit(training_step=step)


@mistake("logger", r"self\.log|loggers")
def logger_of_the_module():
    def step(self, batch):
        self.logger.experiment.add_scalar("accuracy", 0.5)
        return self.loss(batch)

    fit(training_step=step)


@mistake("callbacks", "Print", r"Callback")
def callback_of_no_base():
    class Print:
        def on_train_epoch_end(self, trainer):
            print(trainer.epoch)

    quiet(callbacks=[Print()])


@mistake("on_validation_end", "trainer", "module|more|argument")
def callback_with_further_arguments():
    class Print(Callback):
        def on_validation_end(self, trainer, module):
            print(module)

    fit(Validated, val=samples(), trainer=quiet(callbacks=[Print()]))


@mistake("monitor", "val/loss|val_loss")
def monitor_in_the_first_place():
    Checkpoint("val/loss")


@mistake("Freeze", "nett", r"\bnet\b|allowed|parameters")
def freeze_of_no_parameter():
    fit(trainer=quiet(callbacks=[Freeze("nett.*")]))


@mistake("LambdaCallback", "on_epoch_end", "on_train_epoch_end")
def function_for_a_hook_that_is_none():
    LambdaCallback(on_epoch_end=print)


# -- checkpoints ---------------------------------------------------------------------------------


@mistake("weights", "resume", "load_from_checkpoint|load_state_dict")
def resume_from_bare_weights():
    torch.save(Net().state_dict(), "net.pt")
    quiet().fit(Net(), samples(), resume="net.pt")


@mistake("save_checkpoint", "hook", r"run\.latest")
def save_before_any_fit():
    quiet().save_checkpoint("first")


@mistake("hiden", "hidden", late=True)
def misspelt_argument_of_the_constructor():
    class Sized(Net):
        def __init__(self, hidden=4):
            super().__init__()

    run = quiet(checkpoint=True).fit(Sized(), samples())
    Sized.load_from_checkpoint(run.latest, hiden=8)


# -- configs and commands ------------------------------------------------------------------------


@mistake("epochs", "epochs=3")
def settings_as_options():
    paceline("fit", "digits", "--epochs", "3")


@mistake("train", r"\bfit\b")
def command_of_another_name():
    paceline("train", "digits")


@mistake("max_epochs", r"trainer\.max_epochs|epochs")
def argument_of_the_trainer_without_trainer():
    paceline("fit", "digits", "max_epochs=3")


@mistake("trainer", "list", "mapping")
def list_in_the_place_of_a_mapping():
    Path("run.yaml").write_text("recipe: digits\ntrainer:\n  - max_epochs: 3\n")
    paceline("config", "check", "run.yaml")


@mistake("learning_rate", "AdamW", "did you mean lr")
def argument_of_an_optimizer():
    Path("own_net.py").write_text("from torch import nn\nclass MLP(nn.Module):\n    pass\n")
    Path("run.yaml").write_text(
        "model: own_net:MLP\nloss: mse_loss\noptimizer: {class: AdamW, learning_rate: 0.1}\n"
        "data: {train: own_net:MLP, batch_size: 4}\n"
    )
    paceline("config", "check", "run.yaml")


@mistake("build", "Experiment", "tuple")
def recipe_that_builds_a_tuple():
    Path("own_recipe.py").write_text(
        "from paceline.config import RunConfig\nclass Config(RunConfig):\n    pass\n"
        "def build(config):\n    return config.make_trainer(), None\n"
    )
    paceline("fit", "own_recipe.py")


# ------------------------------------------------------------------------------------------------


@pytest.fixture
def updates() -> Iterator[list[Any]]:
    """The optimizers that made an update, one for each."""
    made: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: made.append(optimizer))
    yield made
    handle.remove()


@pytest.mark.parametrize("case", MISTAKES)
def test_the_mistake_is_answered(case, updates, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if case.printed:
        case.program()
        answer = capsys.readouterr().out
    else:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            case.program()
        answer = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert len(answer.splitlines()) <= 12, answer
        assert case.late or not updates, "a weight was changed"
    missing = [one for one in case.expected if not re.search(one, answer)]
    assert not missing, f"no {missing} in:\n{answer}"
