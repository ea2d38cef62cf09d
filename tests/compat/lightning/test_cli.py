"""LightningCLI: what may be given and where, what is made of it, what modules record, and mistakes."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

import paceline.compat.lightning as L
from paceline import PacelineError
from paceline.compat.lightning.translation.arguments import DEFAULTS
from paceline.strategies import DDP

from .small import Net, data

pytest.importorskip("jsonargparse")
from jsonargparse import Namespace

from paceline.compat.lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from paceline.compat.lightning.pytorch.cli import (
    LightningArgumentParser,
    LightningCLI,
    LRSchedulerCallable,
    OptimizerCallable,
    ReduceLROnPlateau,
    SaveConfigCallback,
)
from paceline.compat.lightning.pytorch.cli.names import with_our_names

pytestmark = pytest.mark.fit  # for its length

OURS = "paceline.compat.lightning.pytorch"
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1}


class Points(L.LightningDataModule):
    def __init__(self, size: int = 12):
        super().__init__()
        self.size, self.features = size, 3

    def train_dataloader(self):
        return data(self.size)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Wide(Net):
    def __init__(self, lr: float = 0.1, width: int = 2, features: int = 1):
        super().__init__(lr, width)
        self.save_hyperparameters()


class Wider(Wide):
    def __init__(self, depth: int = 1, **kwargs):
        super().__init__(**kwargs)


class WithParts(Net):
    def __init__(
        self,
        activation: nn.Module,
        optimizer: OptimizerCallable = torch.optim.SGD,
        lr_scheduler: LRSchedulerCallable = torch.optim.lr_scheduler.ConstantLR,
    ):
        super().__init__()
        self.save_hyperparameters()
        self.activation, self.optimizer, self.lr_scheduler = activation, optimizer, lr_scheduler

    def configure_optimizers(self):
        optimizer = self.optimizer(self.parameters())
        return [optimizer], [self.lr_scheduler(optimizer)]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])


def made(*args, model=Wide, cls=LightningCLI, **options):
    """A CLI that runs nothing."""
    return cls(model, Points, trainer_defaults=QUIET, run=False, args=list(args), **options)


def ran(*args, model=Wide, cls=LightningCLI, **options):
    return cls(model, Points, trainer_defaults=QUIET, args=list(args), **options)


# -- what may be given -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("lightning.pytorch.callbacks.EarlyStopping", f"{OURS}.callbacks.EarlyStopping"),
        ("pytorch_lightning.loggers.CSVLogger", f"{OURS}.loggers.CSVLogger"),
        ("--a=lightning.pytorch.loggers.CSVLogger", f"--a={OURS}.loggers.CSVLogger"),
        ({"a": [{"class_path": "lightning.pytorch.cli.X"}]}, {"a": [{"class_path": f"{OURS}.cli.X"}]}),
        ("my_lightning.pytorch.models.Net", "my_lightning.pytorch.models.Net"),
        ("my.lightning.pytorch.models.Net", "my.lightning.pytorch.models.Net"),
        ("data/pytorch_lightning.csv", "data/pytorch_lightning.csv"),
        (f"{OURS}.callbacks.Timer", f"{OURS}.callbacks.Timer"),
        (3, 3),
    ],
)
def test_lightnings_class_paths_are_ours(given, expected):
    assert with_our_names(given) == expected


def test_the_later_of_several_files_wins_and_arguments_win_over_both():
    Path("a.yaml").write_text("trainer: {max_epochs: 2, min_epochs: 1}\nmodel: {width: 3, lr: 0.5}\n")
    Path("b.yaml").write_text("trainer: {max_epochs: 4}\nmodel: {lr: 0.25}\n")
    cli = made("--config=a.yaml", "--config=b.yaml", "--model.lr=0.125")
    assert (cli.trainer.max_epochs, cli.trainer.min_epochs) == (4, 1)
    assert (cli.model.hparams.width, cli.model.hparams.lr) == (3, 0.125)


def test_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("PL_TRAINER__MAX_EPOCHS", "7")
    monkeypatch.setenv("PL_MODEL__WIDTH", "9")
    cli = made(parser_kwargs={"default_env": True})
    assert (cli.trainer.max_epochs, cli.model.hparams.width) == (7, 9)
    assert made().trainer.max_epochs == 1


def test_a_dict_in_the_place_of_arguments():
    cli = LightningCLI(
        Wide, Points, run=False, args={"model": {"width": 5}, "trainer": QUIET | {"max_epochs": 6}}
    )
    assert (cli.trainer.max_epochs, cli.model.hparams.width) == (6, 5)


def test_arguments_of_the_process_beside_others_are_reported(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py", "--model.width=7"])
    with pytest.warns(UserWarning, match=r"are not: \['--model.width=7'\]"):
        assert made("--model.width=8").model.hparams.width == 8
    assert LightningCLI(Wide, Points, run=False).model.hparams.width == 7


def test_a_class_by_its_name_and_its_arguments_one_by_one():
    cli = made(
        "--model=Wider",
        "--model.depth=4",
        "--model.width=5",
        "--trainer.callbacks=EarlyStopping",
        "--trainer.callbacks.monitor=val_loss",
        "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint",
        "--trainer.callbacks.save_top_k=1",
        "--trainer.strategy=lightning.pytorch.strategies.DDPStrategy",
        "--trainer.strategy.find_unused_parameters=true",
        subclass_mode_model=True,
    )
    assert type(cli.model) is Wider
    assert cli.model.hparams.width == 5
    assert {EarlyStopping, ModelCheckpoint} <= {type(one) for one in cli.trainer.callbacks}
    assert isinstance(cli.trainer.given["strategy"], DDP)


def test_the_configuration_is_printed_and_can_be_read_again(capsys):
    with pytest.raises(SystemExit) as end:
        ran("fit", "--model.width=6", "--print_config")
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["model"] == {"lr": 0.1, "width": 6, "features": 1}
    Path("printed.yaml").write_text(text)
    cli = ran("fit", "--config=printed.yaml", "--trainer.fast_dev_run=true")
    assert cli.model.hparams.width == 6


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["fitt"], ["fitt", "fit", "validate", "test", "predict"]),
        (["fit", "--model.wdth=3"], ["wdth"]),
        (["fit", "--trainer.max_epochs=many"], ["max_epochs", "many"]),
        (["fit", "--config=nowhere.yaml"], ["nowhere.yaml"]),
    ],
)
def test_wrong_arguments_end_with_a_line(args, words, capsys):
    with pytest.raises(SystemExit) as end:
        ran(*args)
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert all(word in printed for word in words), printed


def test_class_paths_of_lightning_in_defaults_and_variables(monkeypatch):
    csv = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "logs"}}

    class Defaults(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.set_defaults({"trainer.callbacks": {"class_path": "lightning.pytorch.callbacks.Timer"}})

    cli = Defaults(Wide, Points, run=False, args=[], trainer_defaults=QUIET | {"logger": csv})
    assert type(cli.trainer.logger).__module__.startswith(OURS)
    assert type(cli.trainer.callbacks[0]).__name__ == "Timer"
    monkeypatch.setenv("PL_TRAINER__LOGGER", "lightning.pytorch.loggers.CSVLogger")
    cli = LightningCLI(Wide, Points, run=False, args=[], parser_kwargs={"default_env": True})
    assert type(cli.trainer.logger).__name__ == "CSVLogger"
    cli = LightningCLI(Wide, Points, run=False, args=Namespace(trainer=Namespace(logger=csv)))
    assert cli.trainer.logger.save_dir == "logs"


SAVED = """
trainer:
  logger:
  - class_path: lightning.pytorch.loggers.TensorBoardLogger
    init_args: {save_dir: logs, name: a, version: null, log_graph: false, default_hp_metric: true,
      prefix: '', sub_dir: null, comment: '', purge_step: null,
      max_queue: 10, flush_secs: 120, filename_suffix: ''}
  - class_path: lightning.pytorch.loggers.WandbLogger
    init_args: {name: null, save_dir: ., version: null, offline: true, dir: null, id: null, anonymous: null,
      project: p, log_model: false, experiment: null, prefix: '', checkpoint_name: null, entity: null,
      group: g, job_type: null, mode: null, notes: null, config: null, resume: null, save_code: null,
      reinit: null, tags: null, settings: null}
  strategy:
    class_path: lightning.pytorch.strategies.DDPStrategy
    init_args: {accelerator: null, parallel_devices: null, cluster_environment: null, checkpoint_io: null,
      precision_plugin: null, process_group_backend: null, timeout: '0:30:00', start_method: popen}
"""


def test_a_configuration_that_lightning_saved_has_every_argument():
    Path("saved.yaml").write_text(SAVED)
    cli = made("--config=saved.yaml")
    assert [type(one).__name__ for one in cli.trainer.loggers] == ["TensorBoardLogger", "WandbLogger"]


# -- what a program adds ---------------------------------------------------------------------------


class Linked(LightningCLI):
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.size", "model.width")
        parser.link_arguments("data.features", "model.features", apply_on="instantiate")
        parser.add_lightning_class_args(EarlyStopping, "stopping")
        parser.set_defaults({"stopping.monitor": "val_loss", "stopping.patience": 3})


def test_links_defaults_and_a_callback_of_the_programs():
    cli = made("--data.size=16", "--stopping.patience=8", cls=Linked)
    assert (cli.model.hparams.width, cli.model.hparams.features) == (16, 3)
    (stopping,) = cli.trainer.early_stopping_callbacks
    assert (stopping.monitor, stopping.patience) == ("val_loss", 8)
    assert "width" not in yaml.safe_load(cli.parser.dump(cli.config))["model"]
    assert cli.config_dump["model"]["width"] == 16


def test_callbacks_of_trainer_defaults_are_added_to_those_of_the_run():
    class Mine(L.Callback):
        pass

    cli = LightningCLI(
        Wide,
        Points,
        trainer_defaults=QUIET | {"callbacks": Mine()},
        run=False,
        args=["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=x"],
    )
    kinds = [type(one) for one in cli.trainer.callbacks]
    assert kinds == [EarlyStopping, Mine, SaveConfigCallback, ModelCheckpoint]


def test_what_a_subclass_overrides_is_called_in_order():
    calls = []

    class Noted(LightningCLI):
        def before_instantiate_classes(self):
            calls.append("before_instantiate_classes")
            self.config.fit.trainer.max_epochs = 2

        def after_instantiate_classes(self):
            calls.append(f"after_instantiate_classes {self.trainer.max_epochs}")

        def before_fit(self):
            calls.append("before_fit")

        def fit(self, model, datamodule, **options):
            calls.append(f"fit {type(model).__name__} {type(datamodule).__name__} {sorted(options)}")

        def after_fit(self):
            calls.append("after_fit")

    ran("fit", cls=Noted)
    assert calls == [
        "before_instantiate_classes",
        "after_instantiate_classes 2",
        "before_fit",
        "fit Wide Points ['ckpt_path', 'weights_only']",
        "after_fit",
    ]


def test_functions_make_module_and_trainer():
    def model(width: int = 3) -> Wide:
        return Wide(width=width)

    def trainer(epochs: int = 2, callbacks: list[L.Callback] | None = None) -> L.Trainer:
        return L.Trainer(max_epochs=epochs, callbacks=callbacks, enable_progress_bar=False)

    cli = LightningCLI(
        model, Points, trainer_class=trainer, run=False, args=["--model.width=4", "--trainer.epochs=3"]
    )
    assert (cli.model.hparams.width, cli.trainer.max_epochs) == (4, 3)


def test_methods_that_programs_override_by_lightnings_names_are_called():
    called = []

    class Mine(LightningCLI):
        def _parse_ckpt_path(self):
            called.append("_parse_ckpt_path")

        def _set_seed(self):
            called.append("_set_seed")
            super()._set_seed()

        def _add_configure_optimizers_method_to_model(self, subcommand):
            called.append(f"_add_configure_optimizers_method_to_model {subcommand}")
            super()._add_configure_optimizers_method_to_model(subcommand)

        def _prepare_subcommand_parser(self, klass, subcommand, **kwargs):
            called.append(subcommand)
            return super()._prepare_subcommand_parser(klass, subcommand, **kwargs)

        def _instantiate_trainer(self, config, callbacks):
            called.append(f"_instantiate_trainer {config['max_epochs']} {len(callbacks)}")
            return super()._instantiate_trainer(config, callbacks)

        def _prepare_subcommand_kwargs(self, subcommand):
            called.append(f"_prepare_subcommand_kwargs {subcommand}")
            return super()._prepare_subcommand_kwargs(subcommand)

    ran("fit", "--trainer.fast_dev_run=true", cls=Mine)
    assert called == [
        *("fit", "validate", "test", "predict"),
        *("_parse_ckpt_path", "_set_seed"),
        "_add_configure_optimizers_method_to_model fit",
        "_instantiate_trainer 1 0",
        "_prepare_subcommand_kwargs fit",
    ]


@pytest.mark.parametrize(("given", "expected"), [("5", 5), ("false", None), ("true", 0)])
def test_seeds(given, expected, monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    cli = made(f"--seed_everything={given}", model=lambda_model)
    if expected is None:
        assert cli.config.seed_everything is False
        assert torch.equal(cli.model.drawn_after, before)
    else:
        assert cli.config.seed_everything == expected
        torch.manual_seed(expected)
        assert torch.equal(cli.model.drawn_after, torch.get_rng_state())


def lambda_model() -> Wide:
    state = torch.get_rng_state()
    module = Wide()
    module.drawn_after = state
    return module


# -- optimizers and schedules ----------------------------------------------------------------------


def test_an_optimizer_and_a_schedule_of_the_command_line():
    schedule = ["--lr_scheduler=StepLR", "--lr_scheduler.step_size=2"]
    with pytest.warns(UserWarning, match="Wide.configure_optimizers is not used: optimizer of the"):
        cli = made("--optimizer=NAdam", "--optimizer.lr=0.5", *schedule)  # bitsandbytes has an Adam
    (optimizer,), (schedule,) = cli.model.configure_optimizers()
    assert (type(optimizer).__name__, optimizer.defaults["lr"]) == ("NAdam", 0.5)
    assert (type(schedule).__name__, schedule.step_size) == ("StepLR", 2)
    assert cli.model.configure_optimizers()[0][0] is not optimizer  # each fit has its own
    cli.trainer.fit(cli.model, cli.datamodule)
    assert type(cli.trainer.optimizers[0]).__name__ == "NAdam"


def test_a_plateau_has_its_monitor():
    with pytest.warns(UserWarning, match="is not used"):
        cli = made(
            "--optimizer=torch.optim.SGD",
            "--optimizer.lr=0.5",
            "--lr_scheduler=lightning.pytorch.cli.ReduceLROnPlateau",
            "--lr_scheduler.monitor=val_loss",
        )
    found = cli.model.configure_optimizers()
    assert type(found["lr_scheduler"]["scheduler"]) is ReduceLROnPlateau
    assert found["lr_scheduler"]["monitor"] == "val_loss"


def test_without_them_the_modules_own_are_used():
    assert "configure_optimizers" not in vars(made().model)
    assert made(auto_configure_optimizers=False).config.get("optimizer") is None


def test_a_fixed_optimizer_class_has_its_arguments_beside_the_others():
    class Fixed(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_optimizer_args(torch.optim.AdamW)
            parser.add_lr_scheduler_args(torch.optim.lr_scheduler.ExponentialLR)
            parser.set_defaults({"lr_scheduler.gamma": 0.5})

    with pytest.warns(UserWarning, match="is not used"):
        cli = made("--optimizer.lr=0.25", cls=Fixed)
    (optimizer,), (schedule,) = cli.model.configure_optimizers()
    assert (type(optimizer).__name__, optimizer.defaults["lr"]) == ("AdamW", 0.25)
    assert schedule.gamma == 0.5


class Two(Net):
    def __init__(self, first: dict, second: dict):
        super().__init__()
        self.first, self.second = first, second


def test_optimizers_are_linked_to_arguments_of_the_module():
    class ForTwo(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_optimizer_args(torch.optim.SGD, "one", link_to="model.first")
            parser.add_optimizer_args((torch.optim.Adam, torch.optim.SGD), "other", link_to="model.second")

    cli = made("--one.lr=0.5", "--other=Adam", "--other.lr=0.25", model=Two, cls=ForTwo)
    assert cli.model.first["class_path"] == "torch.optim.sgd.SGD"
    assert (cli.model.first["init_args"]["lr"], cli.model.second["init_args"]["lr"]) == (0.5, 0.25)
    assert cli.model.second["class_path"] == "torch.optim.Adam"


def test_two_that_are_linked_to_nothing_are_refused():
    class Unlinked(LightningCLI):
        def add_arguments_to_parser(self, parser):
            parser.add_optimizer_args(torch.optim.SGD, "one")
            parser.add_optimizer_args(torch.optim.SGD, "other")

    with pytest.raises(PacelineError, match=r"one optimizer(.|\n)*one, other(.|\n)*link_to="):
        made("--one.lr=1", "--other.lr=1", cls=Unlinked)


def test_a_class_that_is_no_part_of_a_run_is_refused():
    with pytest.raises(PacelineError, match=r"add_class_arguments\(Linear, 'net'\)"):
        LightningArgumentParser().add_lightning_class_args(nn.Linear, "net")


# -- runs, and what they leave ---------------------------------------------------------------------


def test_a_saved_configuration_starts_the_same_run_again():
    first = ran("fit", "--model.lr=0.5", "--seed_everything=3")
    saved = Path(first.trainer.log_dir, "config.yaml")
    assert saved == Path.cwd() / "lightning_logs" / "version_0" / "config.yaml"
    second = ran("fit", f"--config={saved}")
    assert Path(second.trainer.log_dir).name == "version_1"
    assert torch.equal(first.model.layer.weight, second.model.layer.weight)
    assert second.model.hparams == first.model.hparams
    kept = [yaml.safe_load(Path(one.trainer.log_dir, "config.yaml").read_text()) for one in (first, second)]
    assert kept[0] == kept[1]


def test_a_configuration_is_not_written_over_another():
    logger = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=logs", "--trainer.logger.version=4"]
    cli = ran("fit", *logger)
    assert Path(cli.trainer.log_dir) == Path("logs/lightning_logs/version_4")
    with pytest.raises(PacelineError, match=r"another run(.|\n)*version_4/config.yaml(.|\n)*overwrite"):
        ran("fit", *logger)
    ran("fit", *logger, save_config_kwargs={"overwrite": True})
    ran("fit", *logger, save_config_callback=None)


def test_nothing_is_written_under_fast_dev_run():
    ran("fit", "--trainer.fast_dev_run=true")
    assert not Path("lightning_logs", "version_0").exists()


def test_a_saver_of_ones_own():
    class Elsewhere(SaveConfigCallback):
        def save_config(self, trainer, pl_module, stage):
            Path("elsewhere.yaml").write_text(self.parser.dump(self.config))

    options = {"save_config_callback": Elsewhere, "save_config_kwargs": {"save_to_log_dir": False}}
    cli = ran("fit", "--model.width=3", **options)
    assert yaml.safe_load(Path("elsewhere.yaml").read_text())["model"]["width"] == 3
    assert not Path(cli.trainer.log_dir, "config.yaml").exists()
    with pytest.raises(ValueError, match="override save_config"):
        made(save_config_kwargs={"save_to_log_dir": False})


def test_each_method_of_the_trainer_is_a_command():
    fitted = ran("fit", "--model.width=3")
    best = fitted.trainer.checkpoint_callback.best_model_path
    for name in ("validate", "test", "predict"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Net, "test_step", Net.validation_step, raising=False)
            patch.setattr(Net, "predict_step", lambda self, batch, i: self.layer(batch[0]), raising=False)
            cli = ran(name, f"--ckpt_path={best}")
        assert torch.equal(cli.model.layer.weight, fitted.model.layer.weight), name


def test_what_a_checkpoint_was_built_with_counts_for_what_was_not_given():
    best = ran("fit", "--model.width=3", "--model.lr=0.5").trainer.checkpoint_callback.best_model_path
    cli = ran("validate", f"--ckpt_path={best}")
    assert (cli.model.hparams.width, cli.model.hparams.lr) == (3, 0.5)


class Unsaved(Net):
    def __init__(self, lr: float = 0.1, width: int = 2):
        super().__init__(lr)
        self.lr = lr


class PartlySaved(Unsaved):
    def __init__(self, lr: float = 0.1, width: int = 2):
        super().__init__(lr)
        self.save_hyperparameters("width")


@pytest.mark.parametrize("model", [Unsaved, PartlySaved])
def test_what_a_module_did_not_save_is_as_given(model):
    best = ran("fit", "--model.lr=0.5", model=model).trainer.checkpoint_callback.best_model_path
    assert ran("validate", "--model.lr=0.25", f"--ckpt_path={best}", model=model).model.lr == 0.25
    assert model.load_from_checkpoint(best).lr == 0.5


def test_hyperparameters_are_kept_beside_the_logs():
    class Logs(SaveConfigCallback):
        def save_config(self, trainer, pl_module, stage):
            trainer.logger.log_hyperparams({"config": "all of it"})

    class Saving(Points):
        def __init__(self, size: int = 12):
            super().__init__(size)
            self.save_hyperparameters()

    args = ["fit", "--model.width=3", "--data.size=16"]
    cli = LightningCLI(Wide, Saving, Logs, trainer_defaults=QUIET, args=args)
    kept = yaml.safe_load(Path(cli.trainer.log_dir, "hparams.yaml").read_text())
    assert (kept["config"], kept["width"], kept["size"]) == ("all of it", 3, 16)


class Without(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean()


def test_a_module_without_an_optimizer_is_answered_with_both_ways():
    with pytest.raises(PacelineError, match=r"Without has no configure_optimizers(.|\n)*--optimizer=Adam"):
        ran("fit", model=Without)
    ran("fit", "--optimizer=torch.optim.Adam", model=Without)


def test_a_module_with_parts_is_built_from_its_checkpoint():
    cli = ran(
        "fit",
        "--model.activation=torch.nn.LeakyReLU",
        "--model.activation.negative_slope=0.5",
        "--model.optimizer=torch.optim.Adam",
        "--model.optimizer.lr=0.25",
        model=WithParts,
    )
    assert cli.model.hparams.activation["init_args"]["negative_slope"] == 0.5
    loaded = WithParts.load_from_checkpoint(cli.trainer.checkpoint_callback.best_model_path)
    assert loaded.activation.negative_slope == 0.5
    assert loaded.configure_optimizers()[0][0].defaults["lr"] == 0.25
    assert torch.equal(loaded.layer.weight, cli.model.layer.weight)


class SavedPoints(Points):
    def __init__(self, size: int = 12):
        super().__init__(size)
        self.save_hyperparameters()


def test_a_data_module_is_built_from_its_checkpoint():
    cli = LightningCLI(Wide, SavedPoints, trainer_defaults=QUIET, args=["fit", "--data.size=8"])
    path = cli.trainer.checkpoint_callback.best_model_path
    assert cli.datamodule.__class__.load_from_checkpoint(path).size == 8


def test_class_paths_of_lightning_under_omegaconf():
    pytest.importorskip("omegaconf")
    Path("config.yaml").write_text(
        "trainer:\n  callbacks:\n    class_path: lightning.pytorch.callbacks.Timer\nmodel:\n"
        "  width: ${oc.decode:${oc.env:WIDTH,3}}\n"
    )
    cli = made("--config=config.yaml", parser_kwargs={"parser_mode": "omegaconf"})
    assert cli.model.hparams.width == 3
    assert type(cli.trainer.callbacks[0]).__name__ == "Timer"


def test_a_subclass_is_built_from_its_checkpoint():
    cli = ran("fit", "--model=Wider", "--model.depth=5", subclass_mode_model=True)
    assert cli.model.hparams["depth"] == 5
    loaded = Wide.load_from_checkpoint(cli.trainer.checkpoint_callback.best_model_path)
    assert type(loaded) is Wider


def test_without_support_for_checkpoints_modules_record_their_arguments():
    cli = made("--model.width=3", load_from_checkpoint_support=False)
    assert "_instantiator" not in cli.model.hparams
    assert "_instantiator" in made().model.hparams


# -- the trainer's arguments, and the package ------------------------------------------------------


def test_the_trainer_has_all_arguments_with_their_defaults():
    parameters = inspect.signature(L.Trainer.__init__).parameters
    given = {name: one.default for name, one in parameters.items() if name not in ("self", "removed")}
    assert given == DEFAULTS


def test_lightnings_trainer_has_the_same():
    pytest.importorskip("lightning")
    from lightning.pytorch import Trainer

    parameters = inspect.signature(Trainer.__init__).parameters
    assert {name: one.default for name, one in parameters.items() if name != "self"} == DEFAULTS


def test_parts_that_a_configuration_names_take_lightnings_arguments():
    pytest.importorskip("lightning")
    # What **kwargs of DeepSpeedStrategy are is in its config= here.
    left = {"LambdaCallback", "DeepSpeedStrategy", "Strategy", "SingleDeviceStrategy"}
    inside = {"accelerator", "parallel_devices", "cluster_environment", "checkpoint_io", "precision_plugin"}
    inside |= {"ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period"}
    for kind in ("callbacks", "loggers", "strategies"):
        ours, theirs = (importlib.import_module(f"{one}.{kind}") for one in (OURS, "lightning.pytorch"))
        for name in set(ours.__all__) & set(dir(theirs)) - left:
            here, there = (named(getattr(one, name)) for one in (ours, theirs))
            assert there - here - inside == set(), name


def named(function):
    """The arguments that it takes by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name for name, one in inspect.signature(function).parameters.items() if one.kind in kinds}


def test_without_jsonargparse_the_import_says_what_to_install(monkeypatch):
    for name in [one for one in sys.modules if one.startswith(f"{OURS}.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'paceline\[cli\]'"):
        importlib.import_module(f"{OURS}.cli")
