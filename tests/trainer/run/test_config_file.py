"""What a resume has changed of the settings is in config.yaml, in the first lines and in ``diff``."""

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import StepRecord
from paceline.tools.debug.diff import compare

X = torch.linspace(-1, 1, 16).reshape(8, 2)


class Net(TrainModule):
    def __init__(self, rate=0.1):
        super().__init__()
        torch.manual_seed(0)
        self.line, self.rate = nn.Linear(2, 1), rate

    def training_step(self, batch):
        return self.line(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def fit(folder, epochs, resume=None, rate=0.1, **options):
    trainer = Trainer(
        max_epochs=epochs, run_dir=folder, loggers=False, progress=False, callbacks=StepRecord(), **options
    )
    run = trainer.fit(Net(rate), DataLoader(TensorDataset(X), 4), resume=resume)
    return run, yaml.safe_load((run.folder / "config.yaml").read_text())


def test_a_resume_writes_its_settings_and_keeps_what_they_were(tmp_path, capsys):
    fit(tmp_path, 1)
    run, config = fit(tmp_path, 2, "auto", rate=0.2, clip_grad_norm=1.0)
    assert config["trainer"]["max_epochs"] == 2
    assert config["module"]["hparams"] == {"rate": 0.2}
    first = {"trainer.max_epochs": 1, "trainer.clip_grad_norm": None, "module.hparams.rate": 0.1}
    assert config["resumed"] == [{"from": "step-00000002", "before": first}]
    said = "max_epochs 1, now 2; hparams.rate 0.1, now 0.2; clip_grad_norm None, now 1.0"
    for text in (capsys.readouterr().out, (run.folder / "log.txt").read_text()):
        assert "/checkpoints/step-00000002\n" in text
        assert f"other settings than before: {said}\n" in text
    _, config = fit(tmp_path, 3, "auto", rate=0.2, clip_grad_norm=1.0)
    assert [one["from"] for one in config["resumed"]] == ["step-00000002", "step-00000004"]
    assert config["resumed"][1]["before"] == {"trainer.max_epochs": 2}


def test_a_schedule_over_the_length_of_the_run_is_named_where_that_changes(tmp_path, capsys):
    class Cosine(Net):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]

    for epochs in (1, 2):
        trainer = Trainer(max_epochs=epochs, run_dir=tmp_path, loggers=False, progress=False)
        trainer.fit(Cosine(), DataLoader(TensorDataset(X), 4), resume="auto")
    said = "max_epochs 1, now 2 (a schedule over the run's length continues on that of the new length"
    assert said in capsys.readouterr().out


def test_a_resume_with_the_same_settings_leaves_the_file_alone(tmp_path, capsys):
    run, _ = fit(tmp_path, 1)
    text = (run.folder / "config.yaml").read_bytes()
    fit(tmp_path, 1, "auto")
    assert (run.folder / "config.yaml").read_bytes() == text
    assert "other settings than before" not in capsys.readouterr().out


def test_diff_shows_the_settings_of_a_resume(tmp_path):
    whole, _ = fit(tmp_path / "a", 2)
    fit(tmp_path / "b", 1)
    cut, _ = fit(tmp_path / "b", 2, "auto", clip_grad_norm=9.0)
    changed = {one.name: (one.a, one.b) for one in compare(whole, cut).config}
    assert changed["trainer.clip_grad_norm"] == (None, 9.0)
    assert "trainer.max_epochs" not in changed


@pytest.mark.parametrize("text", ["", "[", "trainer: 3\nmodule: {}\n", "- 1\n"])
def test_a_damaged_file_is_left_alone(tmp_path, text):
    run, _ = fit(tmp_path, 1)
    (run.folder / "config.yaml").write_text(text)
    trainer = Trainer(max_epochs=2, run_dir=tmp_path, loggers=False, progress=False)
    trainer.fit(Net(), DataLoader(TensorDataset(X), 4), resume="auto")
    assert trainer.global_step == 4
    assert (run.folder / "config.yaml").read_text() == text
