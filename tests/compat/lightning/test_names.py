"""The names of Lightning that public programs use, in names/names.csv: what is said of each holds.

``repositories`` is in how many of 116 repositories a name occurs, ``uses`` how often, ``answer`` what came
of trying it under both, which names/try_names.py explains.
"""

import csv
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import paceline
import paceline.compat.lightning as L

from .small import Net, data, trainer

FOLDER = Path(__file__).parent / "names"
PAGE = Path(paceline.__file__).parent / "docs" / "migration" / "from-lightning.md"
ROOT = L.__name__


def table():
    with (FOLDER / "names.csv").open() as file:
        return list(csv.DictReader(file))


def of(kind, *answers):
    return [row["name"] for row in table() if row["kind"] == kind and row["answer"] in answers]


def imported(name):
    parent, _, last = f"{ROOT}{name.removeprefix('lightning')}".rpartition(".")
    if last == "*" or name == "lightning":
        return importlib.import_module(parent or ROOT)
    try:
        return getattr(importlib.import_module(parent), last)
    except (ModuleNotFoundError, AttributeError):
        return importlib.import_module(f"{parent}.{last}") if parent else None


@pytest.mark.fit
@pytest.mark.parametrize("name", of("import", "same"))
def test_a_name_is_imported(name):
    if ".cli" in name:
        pytest.importorskip("jsonargparse")
    owner = L  # an alias reaches what is no module, such as pl.__version__.split
    try:
        found = imported(name)
    except ImportError:
        for part in name.split(".")[1:]:
            owner = getattr(owner, part)
        found = owner
    assert type(found).__name__ != "_Refused"


@pytest.mark.fit
@pytest.mark.parametrize("name", of("import", "message"))
def test_a_name_that_is_not_offered_says_what_to_use(name):
    with pytest.raises((ImportError, paceline.PacelineError), match="use"):
        imported(name)()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A trainer after a fit with validation, a logger and checkpoints."""
    folder = str(tmp_path_factory.mktemp("fitted"))
    run = L.Trainer(
        max_epochs=1,
        default_root_dir=folder,
        enable_progress_bar=False,
        logger=L.pytorch.loggers.TensorBoardLogger(folder),
        callbacks=[
            L.pytorch.callbacks.ModelCheckpoint(monitor="val_loss"),
            L.pytorch.callbacks.EarlyStopping("val_loss"),
        ],
    )
    module = L.LightningDataModule.from_datasets(data().dataset, data().dataset)
    run.fit(Net(), datamodule=module)
    return run


@pytest.mark.parametrize("name", of("trainer", "same", "object"))
def test_a_trainer_has_it(fitted, name):
    owner = fitted
    for part in name.split("."):
        owner = getattr(owner, part)


def test_a_stage_is_lightnings_enumeration_in_hooks():
    class Told(Net):
        def setup(self, stage):
            found.append(stage)

        def teardown(self, stage):
            found.append(stage)

    class Data(L.LightningDataModule):
        def setup(self, stage):
            found.append(stage)

        def teardown(self, stage):
            found.append(stage)

        def train_dataloader(self):
            return data()

        val_dataloader = train_dataloader

    found, run = [], trainer()
    run.fit(Told(), datamodule=Data())
    run.validate(Told(), datamodule=Data(), verbose=False)
    assert [one.value for one in found] == ["fit"] * 4 + ["validate"] * 4
    assert f"{found[0]} {run.state.status}" == "TrainerFn.FITTING TrainerStatus.FINISHED"
    assert found[0] == "fit"


def test_private_names_that_programs_read(tmp_path):
    class Reads(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            found.append(trainer._logger_connector.should_update_logs)

    found, run, module = [], trainer(callbacks=[Reads()], log_every_n_steps=2, max_epochs=2), Net()
    run.fit(module, data())
    assert found == [False, True] * 3  # as under Lightning 2.6.6
    assert run._accelerator_connector.cluster_environment.global_rank() == 0
    assert run.strategy.optimizer_state(run.optimizers[0])["param_groups"][0]["lr"] == 0.01
    (tmp_path / "last.ckpt").touch()
    run.strategy.remove_checkpoint(tmp_path / "last.ckpt")
    assert not (tmp_path / "last.ckpt").exists()
    module._automatic_optimization = False
    assert not module.automatic_optimization


def test_the_page_has_the_coverage():
    counts = Counter()
    for row in table():
        for kind in (row["kind"], "all"):
            counts[kind, row["answer"]] += int(row["repositories"])
    totals = Counter()
    for (kind, _), weight in counts.items():
        totals[kind] += weight
    parts = {
        kind: (counts[kind, "same"] + counts[kind, "object"]) / total for kind, total in totals.items()
    }
    assert parts["all"] >= 0.97
    shown = dict(re.findall(r"^\| (\w+) \| [\d,]+ \| ([\d.]+) \|", PAGE.read_text(), re.MULTILINE))
    assert {kind: f"{100 * part:.1f}" for kind, part in parts.items()} == shown


@pytest.mark.launch
def test_each_answer_comes_of_trying_it():
    pytest.importorskip("lightning")
    pytest.importorskip("jsonargparse")
    pytest.importorskip("mlflow")
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    done = subprocess.run(
        [sys.executable, FOLDER / "try_names.py", "--check"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
