"""What a run reports of torch.compile: graphs, why they were compiled again, and what never stops."""

import re

import pytest
import torch
from torch import nn

from paceline import Trainer, TrainModule

pytestmark = pytest.mark.launch  # for its length

EAGER = {"backend": "eager"}


class Net(TrainModule):
    def __init__(self, counts=False):
        super().__init__()
        self.line, self.counts, self.calls = nn.Linear(3, 1), counts, 0

    def forward(self, x):
        if self.counts:
            self.calls += 1
            x = x * self.calls
        return self.line(x).mean()

    def training_step(self, batch):
        return self(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Breaking(Net):
    def forward(self, x):
        self.log("size", x.detach().square().mean())
        return super().forward(x)


def batches(sizes):
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(size, 3, generator=draw) for size in sizes]


def train(folder, module, sizes, setting=EAGER, val=None):
    """The lines of the run's log that are about compilation."""
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "log_every": 1}
    trainer = Trainer(**usual, compile=setting, run_dir=folder, max_epochs=1, checkpoint=False)
    trainer.fit(module, batches(sizes), val and batches(val))
    lines = (trainer.folder / "log.txt").read_text().splitlines()
    return [line for line in lines if "compile" in line]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_a_graph_that_is_compiled_once_has_no_reason(tmp_path):
    (line,) = train(tmp_path, Net(), [4, 4, 4])
    assert re.search(r"step 1: compiled 1 graph in \d+\.\d s$", line)


def test_torch_s_own_reason_is_given_for_what_is_compiled_again(tmp_path):
    _, line = train(tmp_path, Net(), [4, 4, 5, 6])
    reason = r"tensor 'x' size mismatch at index 0\. expected 4, actual 5"
    assert re.search(rf"step 3: compiled 1 graph \(1 recompiled: {reason}\) in \d+\.\d s$", line)


def test_graph_breaks_are_counted(tmp_path):
    (line,) = train(tmp_path, Breaking(), [4, 4])
    assert re.search(r"compiled 2 graphs \(1 graph break\) in", line)


# torch gives up the module after eight sizes, and its layer after eight more.
@pytest.mark.parametrize(
    ("sizes", "graphs"), [(range(3, 9), 6), pytest.param(range(3, 25), 16, marks=pytest.mark.soak)]
)
def test_changing_shapes_are_warned_about_once_with_the_cure(tmp_path, sizes, graphs):
    lines = train(tmp_path, Net(), sizes, EAGER | {"dynamic": False})
    (warning,) = (line for line in lines if "warning" in line)
    assert "forward (test_compile_report.py:" in warning
    assert "again 4 times; " in warning
    assert re.search(r"size mismatch at index 0\. expected \d+, actual \d+", warning)
    for cure in ("'dynamic': True", "padded", "drop_last=True", "TORCH_LOGS=recompiles"):
        assert cure in warning
    reported = [line for line in lines if "compiled 1 graph" in line]
    assert len(reported) == graphs


def test_a_python_number_that_changes_is_warned_about_with_its_cure(tmp_path):
    (warning,) = (line for line in train(tmp_path, Net(counts=True), [4] * 7) if "warning" in line)
    assert "self.calls == " in warning
    assert "tensor" in warning
    assert "dynamic" not in warning
    assert len(warning) < 500


def test_a_function_that_torch_gave_up_is_said_to_run_uncompiled(tmp_path):
    """Blocks that differ in a number: all of them are compiled in step 1."""

    class Numbered(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.line, self.number = nn.Linear(3, 3), number

        def forward(self, x):
            return self.line(x) / self.number

    class Blocks(Net):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Numbered(i + 1) for i in range(12))

        def training_step(self, batch):
            for block in self.blocks:
                batch = block(batch)
            return self.line(batch).mean()

    lines = train(tmp_path, Blocks(), [4, 4], EAGER | {"blocks": True})
    (warning,) = (line for line in lines if "warning" in line)
    assert re.search("again [67] times, and runs it uncompiled from here on; ", warning)
    assert "self.number == " in warning


@pytest.mark.parametrize("setting", [EAGER, EAGER | {"blocks": True}])
def test_a_run_as_usual_is_not_warned_about(tmp_path, setting):
    """Other sizes at the ends of epochs, and evaluation in other sizes."""

    class Usual(Breaking):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return super().forward(x)

        def validation_step(self, batch):
            self.log("loss", self(batch))

    lines = train(tmp_path, Usual(), [8, 8, 6] * 3, setting, val=[20, 20, 10])
    assert len(lines) > 1
    assert not [line for line in lines if "warning" in line]
