"""Names of other trainers, where users write them: imports, attributes, arguments, methods."""

import copy
import importlib
import inspect
import json
import pickle
import re
import subprocess
import sys
from io import BytesIO

import pytest
import torch
import yaml
from helpers.messages import refusal, says
from helpers.small_net import Net, data

import paceline
from paceline import (
    DataModule,
    PacelineError,
    Trainer,
    TrainModule,
    callbacks,
    seed_everything,
    strategies,
    tools,
)
from paceline.callbacks import (
    SWA,
    Callback,
    Checkpoint,
    CSVLogger,
    DeviceMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelSummary,
    TensorBoard,
    Timer,
    WandB,
)
from paceline.callbacks.hooks import HOOKS
from paceline.other_trainers import names_in
from paceline.other_trainers.arguments import OF_CLASSES
from paceline.other_trainers.imports import CLASSES
from paceline.other_trainers.methods import HOOKS as HOOK_PEERS
from paceline.other_trainers.methods import MODULE_METHODS
from paceline.strategies import DDP, FSDP, HSDP, DeepSpeed, Single
from paceline.trainer.config.arguments import TrainerArguments


def quiet(**settings):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "run_dir": None, "max_steps": 1}
    return Trainer(**(usual | settings))


def refused(call, *arguments, **options):
    text = refusal(call, *arguments, **options)
    assert len(text.splitlines()) <= 9, text  # the head of a traceback and the user's line are three more
    return text


# -- imports -------------------------------------------------------------------------------------

IMPORTS = {
    "ModelCheckpoint": "from paceline.callbacks import Checkpoint",
    "TQDMProgressBar": "from paceline.callbacks import Progress",
    "RichProgressBar": "from paceline.callbacks import Progress",
    "StochasticWeightAveraging": "from paceline.callbacks import SWA",
    "WeightAveraging": "from paceline.callbacks import WeightAverage",
    "BaseFinetuning": "from paceline.callbacks import Freeze",
    "DeviceStatsMonitor": "from paceline.callbacks import DeviceMonitor",
    "ModelPruning": "torch.nn.utils.prune",
    "TensorBoardLogger": "from paceline.callbacks import TensorBoard",
    "WandbLogger": "from paceline.callbacks import WandB",
    "MLFlowLogger": "from paceline.callbacks import MLflow",
    "rank_zero_only": "if trainer.is_global_zero:",
    "rank_zero_info": "trainer.log_line(text)",
    "LightningModule": "from paceline import TrainModule",
    "LightningDataModule": "from paceline import DataModule",
    "TrainingArguments": "paceline.Trainer",
    "Accelerator": "Trainer(...).fit(module, dataloader)",
    "DDPStrategy": "from paceline.strategies import DDP",
    "FSDPStrategy": "from paceline.strategies import FSDP",
    "DeepSpeedStrategy": "from paceline.strategies import DeepSpeed",
    "ComposerModel": "from paceline import TrainModule",
    "TrainerCallback": "from paceline.callbacks import Callback",
}


@pytest.mark.parametrize("package", ["paceline", "paceline.callbacks", "paceline.strategies"])
@pytest.mark.parametrize("name", IMPORTS)
def test_an_import_of_another_trainers_name_says_what_to_import(package, name):
    with pytest.raises(ImportError) as caught:
        exec(f"from {package} import {name}", {})
    text = str(caught.value)
    assert text.startswith(f"cannot import name {name!r} from {package!r}; ")
    assert IMPORTS[name] in text


@pytest.mark.parametrize("package", [paceline, callbacks, strategies])
def test_names_that_are_none_stay_none_to_hasattr_getattr_and_dir(package):
    for name in ("ModelCheckpoint", "Nothing", "LightningModule"):
        assert not hasattr(package, name)
        assert getattr(package, name, 3) == 3
        assert name not in dir(package)
    with pytest.raises(AttributeError, match="'ModelCheckpoint'; use Checkpoint"):
        package.ModelCheckpoint  # noqa: B018


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from paceline import Callback", "it is in paceline.callbacks: from paceline.callbacks import"),
        ("from paceline.callbacks import FSDP", "from paceline.strategies import FSDP"),
        ("from paceline.strategies import Trainer", "from paceline import Trainer"),
        ("from paceline import Trainr", "did you mean Trainer?"),
        ("from paceline.callbacks import Checkpont", "did you mean Checkpoint?"),
    ],
)
def test_a_name_of_ours_elsewhere_or_misspelt(line, expected):
    with pytest.raises(ImportError, match=re.escape(expected)):
        exec(line, {})


def test_submodules_and_names_that_are_there_can_be_imported():
    exec("from paceline import callbacks, errors, durations, schedules, trainer, Trainer", {})
    exec("from paceline.callbacks import LearningRateMonitor, base, CSVLogger", {})
    exec("from paceline.strategies import DDP, fsdp", {})
    with pytest.raises(ImportError, match=r"cannot import name 'zzz' from 'paceline'"):
        exec("from paceline import zzz", {})


def test_of_lightnings_names_the_message_says_that_its_code_runs_as_it_is():
    for name, expected in (("LightningModule", True), ("Accelerator", False)):
        with pytest.raises(AttributeError) as caught:
            getattr(paceline, name)
        assert ("import paceline.compat.lightning as L" in str(caught.value)) == expected
    assert importlib.import_module("paceline.compat.lightning").LightningModule


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: ModelSummary(max_depth=2), ["ModelSummary has no argument 'max_depth'", "fix: remove it"]),
        (lambda: Checkpoint(filename="best"), ["no argument 'filename'", "named by their step"]),
        (
            lambda: Checkpoint(filename="best", save_top_k=2, dirpath="x", every="1ep"),
            ["3 invalid arguments", "filename: ", "use keep_best", "Trainer(run_dir=..., name=...)"],
        ),
        (lambda: EarlyStopping("val/loss", verbose=True, strict=True), ["verbose: ", "strict: "]),
        (lambda: EarlyStopping("val/loss", early_stopping_patience=3), ["did you mean: patience?"]),
        (lambda: LearningRateMonitor(logging_interval="step"), ["did you mean: every?"]),
        (lambda: LearningRateMonitor(log_momentum=True, evry=3), ["use momentum", "did you mean every?"]),
        (lambda: DeviceMonitor(cpu_stats=True), ["did you mean: host?"]),
        (lambda: SWA(swa_lrs=0.1, swa_epoch_start=0.8), ["configure_optimizers", "use start"]),
        (lambda: CSVLogger(save_dir="logs", name="x"), ["save_dir: ", "name: ", "run_dir="]),
        (lambda: TensorBoard("logs", name="x"), ["TensorBoard has no argument 'name'"]),
        (lambda: WandB(offline=True, log_model="all"), ['mode="offline"', "log_model: "]),
        (lambda: Timer(duration="1h"), ["Trainer(max_time=...)"]),
        (
            lambda: DDP(timeout=1, process_group_backend="x"),
            ["Trainer(timeouts=...)", "the device decides"],
        ),
        (
            lambda: FSDP(sharding_strategy="FULL", limit_all_gathers=True),
            ["reshard_after_forward", "limit"],
        ),
        (lambda: HSDP(auto_wrap_policy=None), ["HSDP has no argument 'auto_wrap_policy'", "shard_units"]),
        (lambda: DeepSpeed(offload_optimizer=True), ["did you mean: offload?"]),
        (lambda: seed_everything(1, verbose=False), ["seed_everything has no argument 'verbose'"]),
    ],
)
def test_wrong_names_of_arguments_are_one_report(build, expected):
    says(refused(build), *expected)


def test_a_subclass_that_passes_on_what_is_wrong_gets_the_same_answer():
    class Mine(Checkpoint):
        def __init__(self):
            super().__init__(save_top_k=2, filename="x")

    assert "use keep_best" in refused(Mine)


def test_constructors_of_users_are_theirs():
    class Mine(Callback):
        def __init__(self, depth, *, maximum=1):
            self.depth = depth, maximum

    class Bare(Callback):
        pass

    assert Mine(1, maximum=2).depth == (1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_depth'"):
        Mine(1, max_depth=2)
    with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
        Bare(1)
    assert copy.deepcopy(Mine(1)).depth == (1, 1)
    assert pickle.loads(pickle.dumps(ModelSummary())) is not None


def test_all_wrong_arguments_of_fit_and_validate_are_one_report():
    text = refused(quiet().fit, model=Net(), train_dataloaders=data(), ckpt_path=None)
    says(text, "fit: 3 invalid arguments", "model: ", "module, the first argument", "use train_dataloader")
    assert "use resume" in text
    text = refused(quiet().validate, Net(), dataloaders=data(), ckpt_path="best", verbose=False)
    says(text, "validate: 3 invalid arguments", "use dataloader", "use weights", "verbose: ")


class Logs(Net):
    """Logs with options, in one of its steps."""

    def __init__(self, step, **options):
        super().__init__()
        self.where, self.options = step, options

    def training_step(self, batch):
        self.note("training")
        return super().training_step(batch)

    def validation_step(self, batch):
        self.note("validation")
        return super().training_step(batch)

    def note(self, step):
        if step == self.where:
            self.log("accuracy", 0.5, **self.options)


@pytest.mark.parametrize(
    ("step", "logged"),
    [
        ("training", "the mean over the epoch is always logged, as train/accuracy_epoch"),
        ("validation", "the mean over the data is always logged, as val/accuracy"),
    ],
)
def test_log_says_where_the_mean_is_all_in_one_report(step, logged):
    text = refused(quiet().fit, Logs(step, on_epoch=True), data(), data())
    assert text.endswith(logged)
    text = refused(quiet().fit, Logs(step, on_step=False, on_epoch=True, sync_dist=True), data(), data())
    says(text, "log: 3 invalid arguments", f"{logged}\n", "on_step: ", "sync_dist: ")


def test_the_trainers_log_answers_too():
    class Notes(Callback):
        def on_step_end(self, trainer):
            trainer.log("rate", 0.1, on_step=True, logger=False)

    assert "log: 2 invalid arguments" in refused(quiet(callbacks=Notes()).fit, Net(), data())


# -- attributes ----------------------------------------------------------------------------------


class Recorded(TrainModule):
    def __init__(self, lr=0.1, width=2):
        super().__init__()
        self.net = torch.nn.Linear(2, width)
        self.rate = self.hparams.lr

    def forward(self, x):
        return self.net(x) * self.hparams.lr


def test_hparams_are_read_as_attributes_in_the_constructor_and_after_copies():
    module = Recorded(lr=0.3)
    assert module.rate == module.hparams.lr == module.hparams["lr"] == 0.3
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.hparams.width == 2
        assert twin.hparams == {"lr": 0.3, "width": 2}
    assert copy.copy(module.hparams).lr == module.hparams.copy().lr == 0.3
    assert module.hparams | {"lr": 1} == {"lr": 1, "width": 2}


def test_hparams_are_a_dict_to_others():
    hparams = Recorded(lr=0.3).hparams
    assert isinstance(hparams, dict)
    assert json.loads(json.dumps(hparams)) == hparams
    for dump in (yaml.safe_dump, yaml.dump):
        assert yaml.safe_load(dump(hparams)) == hparams
    file = BytesIO()
    torch.save({"hparams": hparams}, file)
    file.seek(0)
    assert torch.load(file) == {"hparams": hparams}  # with weights_only
    assert pickle.loads(pickle.dumps(hparams)) == hparams
    hparams.seed = 3
    assert hparams["seed"] == 3
    del hparams.seed
    assert "seed" not in hparams


DUMPED = """
import yaml
yaml.SafeDumper.add_representer(set, lambda dumper, value: dumper.represent_list(sorted(value)))
import paceline.trainer.run.directory
from paceline.trainer.module_parts.recorded import HParams
print(yaml.safe_dump(HParams(lr=0.3)), yaml.dump(HParams(lr=0.3)))
"""


@pytest.mark.launch
def test_hparams_are_a_dict_where_another_package_has_added_to_a_dumper():
    found = subprocess.run([sys.executable, "-c", DUMPED], capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["lr:", "0.3"] * 2, found.stderr


def test_a_hparam_that_is_none_names_those_there_are():
    with pytest.raises(
        AttributeError, match=r"hparams has no 'widht', only: lr, width; did you mean width"
    ):
        Recorded().hparams.widht  # noqa: B018
    assert not hasattr(Recorded().hparams, "zzz")


def test_compiled_code_reads_hparams_as_attributes():
    compiled = torch.compile(Recorded(lr=0.5), backend="eager", fullgraph=True)
    assert compiled(torch.ones(1, 2)).shape == (1, 2)


@pytest.mark.parametrize("base", [TrainModule, DataModule])
def test_save_hyperparameters_is_answered_in_the_constructor(base):
    class Mine(base):
        def __init__(self, lr=0.1):
            super().__init__()
            self.save_hyperparameters(ignore=["lr"])

    with pytest.raises((PacelineError, AttributeError), match="delete the call: the constructor's arg"):
        Mine()


class Numbers(DataModule):
    def __init__(self, batch_size=4, **more):
        self.size = self.hparams.batch_size

    def train_dataloader(self):
        return data()

    @property
    def broken(self):
        return self.missing


def test_a_datamodule_records_its_arguments_too():
    numbers = Numbers(batch_size=8, folds=2)
    assert numbers.size == 8
    assert pickle.loads(pickle.dumps(numbers)).hparams.folds == copy.copy(numbers).hparams.folds == 2
    quiet().fit(Net(), datamodule=numbers)
    assert not hasattr(numbers, "zzz")
    with pytest.raises(AttributeError, match="no attribute 'missing'"):  # not 'broken'
        numbers.broken  # noqa: B018
    with pytest.raises(AttributeError, match=r"'current_epoch'; use self\.trainer\.epoch"):
        numbers.current_epoch  # noqa: B018


@pytest.mark.parametrize(
    ("attribute", "ours"),
    [
        ("logger", "self.log, self.log_image, "),
        ("current_epoch", "use self.epoch"),
        ("global_rank", "use self.trainer.rank"),
        ("local_rank", "use self.trainer.strategy.environment.local_rank"),
        ("freeze", "use self.requires_grad_(False)"),
        ("save_pretrained", "use self.trainer.export(folder)"),
        ("example_input_array", "remove it"),
    ],
)
@pytest.mark.parametrize("where", ["training_step", "on_fit_start", "configure_optimizers"])
def test_an_attribute_of_other_modules_is_answered_with_ours(attribute, ours, where):
    module = type("Reads", (Net,), {where: lambda self, *_: getattr(self, attribute)})()
    with pytest.raises(AttributeError) as caught:
        quiet().fit(module, data())
    assert f"fix: {ours}" in "\n".join(caught.value.__notes__)
    assert not hasattr(module, attribute)


def test_an_attribute_that_is_nobodys_gets_no_advice():
    module = type("Reads", (Net,), {"training_step": lambda self, batch: self.zzz})()
    with pytest.raises(AttributeError) as caught:
        quiet().fit(module, data())
    assert "fix:" not in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("attribute", "ours"),
    [
        ("callback_metrics", r'use metrics, .*"val/loss" for val_loss'),
        ("checkpoint_callback", "use run.best and run.latest"),
        ("logger", r"use log\(name, value\)"),
        ("global_rank", "use rank"),
        ("num_training_batches", "use steps_per_epoch"),
        ("prepare", r"use fit\(module, dataloader\)"),
        ("unwrap_model", "use module"),
        ("gather_for_metrics", r"or ranks\.gather_data\(value\)"),
        ("wait_for_everyone", r"use ranks\.barrier\(\)"),
        ("is_world_process_zero", "use is_global_zero"),
    ],
)
def test_attributes_of_other_trainers(attribute, ours):
    with pytest.raises(AttributeError, match=f"{attribute}.*{ours}"):
        getattr(quiet(), attribute)


@pytest.mark.parametrize(
    ("name", "part"),
    [("all_gather", "collectives"), ("barrier", "collectives"), ("full_tensors", "weights")],
)
def test_what_a_part_of_a_strategy_has_is_answered_with_the_part(name, part):
    with pytest.raises(AttributeError, match=f"; use strategy\\.{part}\\.{name}$"):
        getattr(Single(), name)


def test_other_attributes_that_a_strategy_lacks_get_no_advice():
    with pytest.raises(AttributeError, match=r"Single has no attribute 'envirnoment'$"):
        _ = Single().envirnoment
    with pytest.raises(AttributeError, match=r"Single has no attribute 'environment'$"):
        _ = Single().device  # which reads it, and there is none before attach


# -- the tables ----------------------------------------------------------------------------------


def test_every_class_that_is_recommended_is_there_and_no_name_is_ours():
    for name, ours in CLASSES.items():
        if " " not in ours:
            package, _, attribute = ours.partition(":")
            home = importlib.import_module(".".join(filter(None, ("paceline", package))))
            assert attribute in home.__all__, name
        for package in (paceline, callbacks, strategies):
            assert name not in package.__all__


def test_every_argument_that_is_recommended_is_there_and_no_name_is_ours():
    for owner, answers in OF_CLASSES.items():
        home = next(p for p in (paceline, callbacks, strategies) if owner in p.__all__)
        known = inspect.signature(getattr(home, owner)).parameters
        for name, ours in answers.items():
            assert name not in known, f"{owner}({name}=)"
            if re.fullmatch(r"\w+", ours):
                assert ours in known, f"{owner}({name}=)"
            elif ours.startswith("Trainer("):
                assert all(n in TrainerArguments.model_fields for n in re.findall(r"(\w+)=", ours)), ours


def test_every_hook_attribute_and_method_that_is_recommended_is_there_and_no_name_is_ours():
    assert not set(HOOK_PEERS) & set(HOOKS)
    assert {ours for ours, _ in HOOK_PEERS.values()} <= set(HOOKS)
    for name in MODULE_METHODS:
        assert not hasattr(TrainModule, name), f"{name} is ours: delete its entry"
    trainer = quiet()
    for name, ours in names_in("trainer.").items():
        assert name == "should_stop" or inspect.getattr_static(trainer, name, None) is None, name
        first, second = re.match(r"(\w+)(?:\.(\w+))?", ours).groups()
        named = ("Trainer", "the", "configure_optimizers", "paceline", "find_learning_rate")
        assert first in named or hasattr(Trainer, first), ours
        for function in re.findall(r"paceline\.tools\.(\w+)|(find_\w+)", ours):
            assert "".join(function) in tools.__all__, ours
        if first in ("ranks", "counters", "loop"):
            assert hasattr(type(getattr(trainer, first)), second), ours
    for table, owner in ((names_in("module."), TrainModule), (names_in("datamodule."), DataModule)):
        for name, ours in table.items():
            assert name == "save_hyperparameters" or not hasattr(owner, name), name
            found = re.match(r"self\.(\w+)(?:\.(\w+))?", ours)
            if found:
                assert hasattr(owner, found[1]), ours
                assert found[2] is None or found[1] != "trainer" or hasattr(Trainer, found[2]), ours


def test_arguments_of_a_trainer_that_mean_another_place():
    for name in ("lr", "optimizer", "train_batch_size"):
        with pytest.raises(
            PacelineError, match=re.escape(f"{name}: unknown argument; use {names_in('Trainer')[name]}")
        ):
            Trainer(**{name: 1})
