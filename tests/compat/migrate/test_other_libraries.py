"""The report of a program for each library but Lightning, line by line."""

from __future__ import annotations

from paceline.compat.migrate.analysis import analyse


def found(path, source):
    path.write_text(source)
    report = analyse(path)
    assert report.error is None
    assert report.rewritten == report.source  # --write leaves them
    return report, [(f.line, f.group.key, f.name) for f in report.findings]


def text_of(report, name):
    return next(finding.text for finding in report.findings if finding.name == name)


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


def test_accelerate(tmp_path):
    report, listed = found(tmp_path / "train.py", ACCELERATE)
    assert report.libraries == ["accelerate", "transformers"]
    assert listed == [
        (2, "rewrite", "Accelerator"),
        (3, "rewrite", "ProjectConfiguration"),
        (3, "rewrite", "set_seed"),
        (4, "runs", "get_linear_schedule_with_warmup"),
        (9, "rewrite", "Accelerator(mixed_precision=)"),
        (9, "rewrite", "Accelerator(gradient_accumulation_steps=)"),
        (9, "rewrite", "Accelerator(log_with=)"),
        (10, "rewrite", "accelerator.init_trackers"),
        (13, "rewrite", "accelerator.prepare"),
        (14, "rewrite", "accelerator.load_state"),
        (16, "rewrite", "accelerator.accumulate"),
        (18, "rewrite", "accelerator.backward"),
        (19, "rewrite", "accelerator.sync_gradients"),
        (20, "rewrite", "accelerator.clip_grad_norm_"),
        (22, "rewrite", "accelerator.is_main_process"),
        (23, "rewrite", "accelerator.print"),
        (23, "rewrite", "accelerator.gather"),
        (24, "rewrite", "accelerator.wait_for_everyone"),
        (25, "rewrite", "accelerator.save_state"),
        (26, "rewrite", "accelerator.unwrap_model"),
    ]
    assert "give the loaders to trainer.fit" in text_of(report, "accelerator.prepare")
    assert "training_step(self, batch)" in text_of(report, "accelerator.backward")
    assert "Trainer(accumulate=...)" in text_of(report, "Accelerator(gradient_accumulation_steps=)")
    assert 'resume="auto"' in text_of(report, "accelerator.load_state")


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


def test_transformers(tmp_path):
    report, listed = found(tmp_path / "train.py", TRANSFORMERS)
    assert report.libraries == ["transformers"]
    assert listed == [
        (3, "rewrite", "EarlyStoppingCallback"),
        (4, "rewrite", "Trainer"),
        (5, "rewrite", "TrainerCallback"),
        (6, "rewrite", "TrainingArguments"),
        (7, "runs", "default_data_collator"),
        (12, "rewrite", "compute_loss"),
        (13, "rewrite", "self.log"),
        (18, "rewrite", "on_evaluate"),
        (21, "rewrite", "on_something"),
        (26, "rewrite", "TrainingArguments(output_dir=)"),
        (27, "rewrite", "TrainingArguments(num_train_epochs=)"),
        (28, "rewrite", "TrainingArguments(per_device_train_batch_size=)"),
        (29, "rewrite", "TrainingArguments(learning_rate=)"),
        (30, "rewrite", "TrainingArguments(bf16=)"),
        (31, "rewrite", "TrainingArguments(eval_strategy=)"),
        (32, "rewrite", "TrainingArguments(save_total_limit=)"),
        (33, "rewrite", "TrainingArguments(report_to=)"),
        (34, "rewrite", "TrainingArguments(not_an_argument=)"),
        (39, "rewrite", "EarlyStoppingCallback(early_stopping_patience=)"),
        (41, "rewrite", "trainer.train"),
        (42, "rewrite", "trainer.save_model"),
    ]
    assert "Trainer(run_dir=...)" in text_of(report, "TrainingArguments(output_dir=)")
    assert 'Trainer(validate_every="1ep")' in text_of(report, "TrainingArguments(eval_strategy=)")
    assert "on_validation_end(self, trainer)" in text_of(report, "on_evaluate")
    assert "trainer.fit(module" in text_of(report, "trainer.train")


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


def test_composer(tmp_path):
    report, listed = found(tmp_path / "train.py", COMPOSER)
    assert report.libraries == ["composer"]
    assert listed == [
        (1, "rewrite", "Callback"),
        (1, "rewrite", "ComposerModel"),
        (1, "rewrite", "Event"),
        (1, "rewrite", "Trainer"),
        (2, "rewrite", "LabelSmoothing"),
        (3, "rewrite", "State"),
        (4, "rewrite", "WandBLogger"),
        (8, "changes", "forward"),
        (11, "rewrite", "loss"),
        (16, "rewrite", "epoch_end"),
        (17, "rewrite", "Event.EPOCH_END"),
        (21, "rewrite", "Trainer(model=)"),
        (22, "rewrite", "Trainer(train_dataloader=)"),
        (23, "rewrite", "Trainer(max_duration=)"),
        (24, "rewrite", "Trainer(algorithms=)"),
        (25, "rewrite", "Trainer(loggers=)"),
        (26, "runs", "Trainer(seed=)"),
        (28, "rewrite", "trainer.fit(duration=)"),
        (28, "rewrite", "trainer.fit"),
        (29, "rewrite", "trainer.close"),
    ]
    assert "on_train_epoch_end(self, trainer)" in text_of(report, "Event.EPOCH_END")
    assert "on_train_epoch_end(self, trainer)" in text_of(report, "epoch_end")
    assert "max_epochs=" in text_of(report, "Trainer(max_duration=)")
    assert "not the batch" in text_of(report, "forward")


def test_models_of_transformers_alone_are_no_code_for_its_trainer(tmp_path):
    source = "from transformers import AutoModel, AutoTokenizer\nimport transformers\nAutoModel()\n"
    report, listed = found(tmp_path / "model.py", source)
    assert (report.libraries, listed) == ([], [])


def test_arguments_in_a_mapping_are_reported(tmp_path):
    source = "from transformers import TrainingArguments\nTrainingArguments(**options)\n"
    _, listed = found(tmp_path / "train.py", source)
    assert (2, "rewrite", "TrainingArguments(**)") in listed
