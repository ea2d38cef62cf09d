"""The report of a program for each library but Lightning, line by line."""

import pytest

from paceline.compat.migrate.analysis import analyse


def found(path, source):
    path.write_text(source)
    report = analyse(path)
    assert report.error is None
    assert report.rewritten == report.source  # --write leaves them
    return report, [(f.line, f.group.key, f.name) for f in report.findings]


ACCELERATE = """\
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from transformers import AutoModel, get_linear_schedule_with_warmup


def main():
    set_seed(1)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, log_with="wandb")
    accelerator.init_trackers("project")
    model = AutoModel.from_pretrained("x")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, load())
    accelerator.load_state("checkpoints")
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if accelerator.is_main_process and step % 10 == 0:
            accelerator.print(accelerator.gather(loss).mean())
    accelerator.wait_for_everyone()
    accelerator.save_state("checkpoints")
    accelerator.unwrap_model(model).save_pretrained("out")
"""

TRANSFORMERS = """\
from transformers import (
    AutoModelForSequenceClassification,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        self.log({"x": 1.0})
        return model(**inputs).loss


class Printer(TrainerCallback):
    def on_evaluate(self, args, state, control, **kwargs):
        print(state.global_step)

    def on_something(self, args, state, control, **kwargs):
        pass


arguments = TrainingArguments(
    "out",
    num_train_epochs=3,
    per_device_train_batch_size=8,
    learning_rate=5e-5,
    bf16=True,
    eval_strategy="epoch",
    save_total_limit=2,
    report_to="wandb",
    not_an_argument=True,
)
trainer = Weighted(
    model=AutoModelForSequenceClassification.from_pretrained("x"),
    args=arguments,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
)
trainer.train(resume_from_checkpoint=True)
trainer.save_model("final")
"""

COMPOSER = """\
from composer import Callback, ComposerModel, Event, Trainer
from composer.algorithms import LabelSmoothing
from composer.core import State
from composer.loggers import WandBLogger


class Net(ComposerModel):
    def forward(self, batch):
        return self.module(batch[0])

    def loss(self, outputs, batch):
        return outputs.mean()


class Printer(Callback):
    def epoch_end(self, state: State, logger):
        print(Event.EPOCH_END)


trainer = Trainer(
    model=Net(),
    train_dataloader=loader,
    max_duration="2ep",
    algorithms=[LabelSmoothing(0.1)],
    loggers=WandBLogger(),
    seed=3,
)
trainer.fit(duration="1ep")
trainer.close()
"""
CASES = {
    "accelerate": (
        ACCELERATE,
        ["accelerate", "transformers"],
        """2 Accelerator, 3 ProjectConfiguration, 3 set_seed, 4 get_linear_schedule_with_warmup runs,
9 Accelerator(mixed_precision=), 9 Accelerator(gradient_accumulation_steps=), 9 Accelerator(log_with=),
10 accelerator.init_trackers, 13 accelerator.prepare, 14 accelerator.load_state,
16 accelerator.accumulate, 18 accelerator.backward, 19 accelerator.sync_gradients,
20 accelerator.clip_grad_norm_, 22 accelerator.is_main_process, 23 accelerator.print,
23 accelerator.gather, 24 accelerator.wait_for_everyone, 25 accelerator.save_state,
26 accelerator.unwrap_model""",
        {
            "accelerator.prepare": "give the loaders to trainer.fit",
            "accelerator.backward": "training_step(self, batch)",
            "Accelerator(gradient_accumulation_steps=)": "Trainer(accumulate=...)",
            "accelerator.load_state": 'resume="auto"',
        },
    ),
    "transformers": (
        TRANSFORMERS,
        ["transformers"],
        """3 EarlyStoppingCallback, 4 Trainer, 5 TrainerCallback, 6 TrainingArguments,
7 default_data_collator runs, 12 compute_loss, 13 self.log, 18 on_evaluate, 21 on_something,
26 TrainingArguments(output_dir=), 27 TrainingArguments(num_train_epochs=),
28 TrainingArguments(per_device_train_batch_size=), 29 TrainingArguments(learning_rate=),
30 TrainingArguments(bf16=), 31 TrainingArguments(eval_strategy=),
32 TrainingArguments(save_total_limit=), 33 TrainingArguments(report_to=),
34 TrainingArguments(not_an_argument=), 39 EarlyStoppingCallback(early_stopping_patience=),
41 trainer.train, 42 trainer.save_model""",
        {
            "TrainingArguments(output_dir=)": "Trainer(run_dir=...)",
            "TrainingArguments(eval_strategy=)": 'Trainer(validate_every="1ep")',
            "on_evaluate": "on_validation_end(self, trainer)",
            "trainer.train": "trainer.fit(module",
        },
    ),
    "composer": (
        COMPOSER,
        ["composer"],
        """1 Callback, 1 ComposerModel, 1 Event, 1 Trainer, 2 LabelSmoothing, 3 State, 4 WandBLogger,
8 forward changes, 11 loss, 16 epoch_end, 17 Event.EPOCH_END, 21 Trainer(model=),
22 Trainer(train_dataloader=), 23 Trainer(max_duration=), 24 Trainer(algorithms=), 25 Trainer(loggers=),
26 Trainer(seed=) runs, 28 trainer.fit(duration=), 28 trainer.fit, 29 trainer.close""",
        {
            "Event.EPOCH_END": "on_train_epoch_end(self, trainer)",
            "epoch_end": "on_train_epoch_end(self, trainer)",
            "Trainer(max_duration=)": "max_epochs=",
            "forward": "not the batch",
        },
    ),
}
"""A program, its libraries, what is found (``LINE NAME [GROUP]``), parts of what is said of a name."""


def rows(text):
    """Line, group and name of each finding; what names no group has to be rewritten."""
    for one in text.replace("\n", " ").split(", "):
        line, name, *group = one.split()
        yield int(line), *(group or ["rewrite"]), name


@pytest.mark.parametrize("name", CASES)
def test_the_report_of_a_program(name, tmp_path):
    source, libraries, expected, said = CASES[name]
    report, listed = found(tmp_path / "train.py", source)
    assert report.libraries == libraries
    assert listed == [*rows(expected)]
    texts = {finding.name: finding.text for finding in reversed(report.findings)}
    assert [part for name, part in said.items() if part not in texts[name]] == []


def test_models_of_transformers_alone_are_no_code_for_its_trainer(tmp_path):
    source = "from transformers import AutoModel, AutoTokenizer\nimport transformers\nAutoModel()\n"
    report, listed = found(tmp_path / "model.py", source)
    assert (report.libraries, listed) == ([], [])


def test_arguments_in_a_mapping_are_reported(tmp_path):
    source = "from transformers import TrainingArguments\nTrainingArguments(**options)\n"
    _, listed = found(tmp_path / "train.py", source)
    assert (2, "rewrite", "TrainingArguments(**)") in listed
