"""ModelSummary: the table of a module's parts."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks.summary import parameter_table


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(100, 100), nn.ReLU())
        self.head = nn.Linear(100, 10, bias=False)
        self.mixed = nn.Linear(2, 3)
        self.mixed.bias.requires_grad_(False)
        self.act = nn.ReLU()
        self.scale = nn.Parameter(torch.ones(7))
        self.backbone.requires_grad_(False)

    def training_step(self, batch):
        return self.head.weight.sum() * batch[0].mean()

    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


def rows(module):
    head, *parts, total = parameter_table(module).splitlines()
    return head.split(), {part.split()[0]: part.split()[1:] for part in parts}, total


def test_each_direct_part_has_a_row():
    head, parts, total = rows(Net())
    assert head == ["part", "type", "parameters", "trained"]
    assert parts["backbone"] == ["Sequential", "10,100", "no"]
    assert parts["head"] == ["Linear", "1,000", "yes"]
    assert parts["mixed"] == ["Linear", "9", "partly"]
    assert parts["act"] == ["ReLU", "0", "-"]
    assert parts["(own"] == ["parameters)", "Parameter", "7", "yes"]
    assert total == "11,116 parameters, 1,013 trained, 0.0 MB"


def test_shared_parameters_count_once():
    module = Net()
    module.again = module.backbone[0]
    module.tied = nn.Linear(100, 10, bias=False)
    module.tied.weight = module.head.weight
    assert rows(module)[2].startswith("11,116 parameters, 1,013 trained")


def test_sizes_are_counted_in_bytes():
    module = nn.Module()
    module.big = nn.Linear(1000, 1000, bias=False, dtype=torch.float64)
    assert rows(module)[2] == "1,000,000 parameters, 1,000,000 trained, 8.0 MB"


def test_many_parts_are_cut_and_long_names_too():
    module = nn.Module()
    for number in range(40):
        module.add_module(f"{'a_very_long_name_' * 6}{number}", nn.Linear(2, 2))
    lines = parameter_table(module).splitlines()
    assert max(len(line) for line in lines) <= 80
    assert len(lines) == 26
    assert lines[-2].startswith("... 17 more")
    assert lines[-1].startswith("240 parameters")


def test_a_module_without_parameters():
    assert rows(nn.Module())[2] == "0 parameters, 0 trained, 0.0 MB"


def test_it_is_printed_after_the_first_lines_and_kept_in_log_txt(capsys):
    trainer = Trainer(max_steps=1, loggers=False, checkpoint=False)
    module = Net()
    trainer.fit(module, DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2))
    out = capsys.readouterr().out
    assert parameter_table(module) in out
    assert out.index("starts fresh") < out.index("backbone")
    log = (trainer.folder / "log.txt").read_text()
    assert all(line in log for line in parameter_table(module).splitlines())


def test_progress_false_switches_it_off(capsys):
    trainer = Trainer(max_steps=1, progress=False, loggers=False, checkpoint=False)
    trainer.fit(Net(), DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2))
    assert "backbone  Sequential" not in capsys.readouterr().out
