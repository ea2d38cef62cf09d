"""The display of a notebook: drawn at most twice a second, whole in each drawing, without a script."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Progress, progress
from paceline.callbacks.notebook_display import NotebookDisplay


class Drawn:
    """A kernel's shell and its display, as far as the display asks for them."""

    def __init__(self):
        self.drawings = []
        self.kernel = object()
        self.display = SimpleNamespace(display=self._begin)

    def _begin(self, content, *, raw, display_id):
        assert raw
        assert display_id
        return self._draw(content)

    def _draw(self, content):
        self.drawings.append(content)
        return SimpleNamespace(update=lambda content, raw: self._draw(content))


@pytest.fixture
def kernel(monkeypatch):
    drawn = Drawn()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: drawn))
    monkeypatch.setitem(sys.modules, "IPython.display", drawn.display)
    return drawn


class Module(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch):
        self.log("<accuracy>", 0.5)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(tmp_path, **settings):
    loader = DataLoader(TensorDataset(torch.ones(12, 2)), batch_size=4)
    settings = {"loggers": False, "checkpoint": False, "max_epochs": 2, "run_dir": tmp_path} | settings
    trainer = Trainer(**settings)
    trainer.fit(Module(), loader, loader)
    return trainer


def test_the_last_drawing_has_bar_values_and_each_validation(kernel, tmp_path, capsys):
    fit(tmp_path)
    last = kernel.drawings[-1]
    html, text = last["text/html"], last["text/plain"]
    assert '<progress value="6" max="6"' in html
    assert "ended: max_epochs=2 reached" in html
    assert html.count("<tr>") == 3
    assert "<td>epoch 2, step 6</td><td>0.5</td>" in html
    assert "val/&lt;accuracy&gt;" in html
    assert "<script" not in html
    assert text.splitlines()[0] == "epoch 1, step 3: val/<accuracy> 0.5"
    printed = capsys.readouterr().out
    assert "val/<accuracy>" not in printed  # the display shows it
    assert "ended: " not in printed
    assert "\x1b" not in printed + html + text
    assert "\r" not in printed + html + text
    log = (tmp_path / "module" / "1" / "log.txt").read_text()
    assert "epoch 2, step 6: val/<accuracy> 0.5" in log
    assert "ended: max_epochs=2 reached" in log


def test_it_is_drawn_no_more_often_than_twice_a_second(kernel, tmp_path, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock) / 1000)
    fit(tmp_path, max_epochs=50)
    seconds = next(clock) / 1000
    assert 2 <= len(kernel.drawings) <= 3 + 2 * seconds
    assert len(kernel.drawings) < 50  # though there were 50 validations


def test_a_user_s_progress_chooses_the_values_of_the_display(kernel, tmp_path):
    class Short(Progress):
        def values(self, trainer):
            return {"mine": 1.5}

    fit(tmp_path, callbacks=Short())
    assert "mine 1.5" in kernel.drawings[-1]["text/html"]


def test_a_run_that_fails_leaves_its_last_state_on_display(kernel, tmp_path):
    class Failing(Module):
        def training_step(self, batch):
            if self.global_step == 2:
                raise KeyError("mine")
            return super().training_step(batch)

    loader = DataLoader(TensorDataset(torch.ones(12, 2)), batch_size=4)
    with pytest.raises(KeyError):
        Trainer(loggers=False, checkpoint=False, run_dir=tmp_path).fit(Failing(), loader)
    assert '<progress value="2" max="3"' in kernel.drawings[-1]["text/html"]


def test_progress_false_displays_nothing(kernel, tmp_path):
    fit(tmp_path, progress=False)
    assert kernel.drawings == []


def test_the_table_has_the_newest_rows_and_says_so(kernel):
    display = NotebookDisplay()
    for step in range(32):
        display.add_row(f"step {step}", {"a": float(step)} | ({"b": 1} if step > 30 else {}))
    display.show(1, None, "line")
    html = kernel.drawings[-1]["text/html"]
    assert "<progress" not in html  # how many steps there will be is not known
    assert html.count("<tr>") == 31
    assert "<td>step 2</td><td>2</td><td></td>" in html
    assert "2 earlier validations" in html


@pytest.mark.parametrize("ipython", [None, SimpleNamespace(get_ipython=lambda: None)])
def test_without_a_kernel_there_is_no_display(ipython, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    if ipython is not None:
        monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not NotebookDisplay.is_possible()
    assert (sys.modules.get("IPython") is None) == (ipython is None)  # nothing was imported
