"""The report of Lightning code, line by line, and what --write leaves with a comment."""

import pytest

from paceline.compat.migrate.analysis import analyse
from paceline.compat.migrate.tables import Group

PROGRAM = """\
import pytorch_lightning as pl
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import WandbLogger


class Printer(Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        print(batch_idx, trainer.callback_metrics["val_loss"].item())

    def setup(self, trainer, pl_module, stage):
        print(pl_module.hparams.lr, stage)


class Net(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        loss = self(batch)
        self.log("train_loss", loss, on_epoch=True)
        self.logger.experiment.add_image("x", batch, self.global_step)
        return loss

    def optimizer_step(self, *args):
        pass

    def on_validation_epoch_end(self):
        print(self.current_epoch, self.trainer.sanity_checking)


trainer = Trainer(
    gpus=2,
    max_epochs=-1,
    callbacks=[ModelCheckpoint(monitor="val_loss", filename="best")],
    logger=WandbLogger(project="x"),
    not_an_argument=1,
)
trainer.fit(Net(0.1), ckpt_path="last")
"""


def found(path, source):
    path.write_text(source)
    report = analyse(path)
    assert report.error is None
    return report


def listed(report):
    return [(f.line, f.group.key, f.name, f.automatic) for f in report.findings]


def test_lightning(tmp_path):
    report = found(tmp_path / "train.py", PROGRAM)
    assert report.libraries == ["lightning"]
    assert listed(report) == [
        (1, "rewrite", "import pytorch_lightning as pl", True),
        (2, "rewrite", "Trainer", True),
        (3, "rewrite", "Callback", True),
        (3, "rewrite", "ModelCheckpoint", True),
        (4, "rewrite", "WandbLogger", False),
        (8, "rewrite", "on_train_batch_end", False),
        (9, "rewrite", 'trainer.callback_metrics["val_loss"]', True),
        (9, "rewrite", "trainer.callback_metrics", True),
        (11, "rewrite", "setup", True),
        (12, "runs", "pl_module.hparams.lr", False),
        (15, "rewrite", "pl.LightningModule", True),
        (18, "rewrite", "self.save_hyperparameters", True),
        (20, "runs", "training_step", False),
        (22, "rewrite", "self.log(on_epoch=)", True),
        (22, "changes", "self.log", False),
        (23, "rewrite", "self.logger.experiment.add_image", False),
        (23, "changes", "self.global_step", False),
        (26, "rewrite", "optimizer_step", False),
        (29, "rewrite", "on_validation_epoch_end", True),
        (29, "changes", "on_validation_epoch_end", False),
        (30, "rewrite", "self.current_epoch", True),
        (30, "rewrite", "self.trainer.sanity_checking", False),
        (34, "rewrite", "Trainer(gpus=)", False),
        (35, "rewrite", "Trainer(max_epochs=)", False),
        (36, "runs", "Trainer(callbacks=)", False),
        (36, "runs", "ModelCheckpoint(monitor=)", False),
        (36, "rewrite", "ModelCheckpoint(filename=)", True),
        (37, "rewrite", "Trainer(logger=)", True),
        (38, "rewrite", "Trainer(not_an_argument=)", False),
        (40, "rewrite", "trainer.fit(ckpt_path=)", True),
        (40, "runs", "trainer.fit", False),
    ]
    texts = {finding.name: finding.text for finding in report.findings}
    assert texts["setup"] == "it is called on_setup(self, trainer, stage) here"
    assert texts["on_train_batch_end"].startswith("write on_step_end, which has no batch_idx")
    assert texts["Trainer(logger=)"] == "it is called loggers here"


def test_what_cannot_be_translated_is_marked_above_its_statement(tmp_path):
    report = found(tmp_path / "train.py", PROGRAM)
    lines = report.rewritten.decode().splitlines()
    marks = {lines[i + 1].strip(): line.strip() for i, line in enumerate(lines) if "# paceline: " in line}
    assert "def optimizer_step(self, *args):" in marks
    assert 'self.logger.experiment.add_image("x", batch, self.global_step)' in marks
    assert "from pytorch_lightning.loggers import WandbLogger" not in marks
    above = lines[: lines.index("trainer = Trainer(")]
    assert any(line.startswith("# paceline: WandbLogger: write WandB(") for line in above[-6:])
    head = [line for line in lines if line.startswith(("from ", "import "))]
    assert head == [
        "from paceline import TrainModule, Trainer",
        "from paceline.callbacks import Callback, Checkpoint",
        "from pytorch_lightning.loggers import WandbLogger",
    ]


def test_the_marks_are_a_list_of_what_is_left(tmp_path):
    path = tmp_path / "train.py"
    report = found(path, PROGRAM)
    path.write_bytes(report.rewritten)
    again = analyse(path)
    assert again.rewritten == again.source
    left = [(f.name, f.text) for f in report.findings if f.group is Group.REWRITE and not f.automatic]
    assert sorted((f.name, f.text) for f in again.findings if f.group is Group.REWRITE) == sorted(left)


def rewritten(tmp_path, source):
    return found(tmp_path / "train.py", source).rewritten.decode()


WITHIN_AN_EPOCH = [
    ("accumulate_grad_batches=4", "accumulate=4"),
    ("gradient_clip_val=0.5", "clip_grad_norm=0.5"),
    ("gradient_clip_val=0.5, gradient_clip_algorithm='value'", "clip_grad_value=0.5"),
    ("gradient_clip_val=0", ""),
    ("check_val_every_n_epoch=2", 'validate_every="2ep"'),
    ("check_val_every_n_epoch=n", 'validate_every=f"{n}ep"'),
    ("val_check_interval=0.5", 'validate_every="0.5ep"'),
    ("val_check_interval=40, accumulate_grad_batches=4", "validate_every=10, accumulate=4"),
    ("precision='bf16-mixed'", 'precision="bf16"'),
    ("precision=16", 'precision="fp16"'),
    ("precision='32-true'", 'precision="32"'),
    ("log_every_n_steps=5, num_sanity_val_steps=0", "log_every=5, sanity_val_batches=0"),
    ("default_root_dir='x', enable_progress_bar=False", "run_dir='x', progress=False"),
    ("logger=None, enable_checkpointing=False", "checkpoint=False"),
    ("max_steps=-1, benchmark=False", ""),
    ("barebones=True", "progress=False, loggers=False, checkpoint=False"),
    ("strategy='ddp_spawn'", 'strategy="ddp"'),
    ("strategy='ddp_find_unused_parameters_true'", "strategy=DDP(find_unused_parameters=True)"),
]


@pytest.mark.parametrize(
    ("given", "native"),
    [
        *(
            (f"max_epochs=1, {given}", f"max_epochs=1, {native}".removesuffix(", "))
            for given, native in WITHIN_AN_EPOCH
        ),
        ("max_time={'hours': 2}", "max_time=timedelta(hours=2)"),
        ("devices=1", "devices=1, max_epochs=1000"),
        ("", "max_epochs=1000"),
    ],
)
def test_arguments_of_the_trainer(given, native, tmp_path):
    source = f"import lightning as L\n\nn = 3\ntrainer = L.Trainer({given})\n"
    assert f"trainer = Trainer({native})" in rewritten(tmp_path, source)


@pytest.mark.parametrize(
    "given",
    [
        "max_epochs=-1",
        "max_epochs=1, val_check_interval=3, accumulate_grad_batches=2",
        "max_epochs=1, check_val_every_n_epoch=2, val_check_interval=0.5",
        "max_epochs=1, gradient_clip_val=1.0, gradient_clip_algorithm=how",
        "max_epochs=1, benchmark=True",
        "max_epochs=1, precision='transformer-engine'",
        "max_epochs=1, deterministic='warn'",
        "max_epochs=1, strategy='xla'",
        "**options",
    ],
)
def test_arguments_that_are_left(given, tmp_path):
    report = found(tmp_path / "train.py", f"from lightning import Trainer\n\nTrainer({given})\n")
    lines = report.rewritten.decode().splitlines()
    assert any(line.startswith("# paceline: Trainer(") for line in lines), lines
    assert "Trainer(" in lines[-1]
    assert given.rpartition("=")[2] in lines[-1]


@pytest.mark.parametrize(
    ("given", "native"),
    [
        ("ModelCheckpoint(monitor='val_loss')", "Checkpoint(monitor='val_loss', mode=\"min\")"),
        ("ModelCheckpoint(save_top_k=-1, every_n_epochs=5)", 'Checkpoint(keep=None, every="5ep")'),
        ("ModelCheckpoint(every_n_train_steps=100, save_last=True)", "Checkpoint(every=100)"),
        (
            "ModelCheckpoint('out', 'best', 'val_acc', mode='max', save_top_k=3)",
            "Checkpoint(monitor='val_acc', mode='max', keep=1, keep_best=3)",
        ),
        ("EarlyStopping('val_acc', mode='max', verbose=True)", "EarlyStopping('val_acc', mode='max')"),
        ("EarlyStopping('x', 0.1, 5)", "EarlyStopping('x', min_delta=0.1, patience=5, mode=\"min\")"),
        ("LearningRateMonitor(logging_interval='step')", "LearningRateMonitor()"),
        ("RichProgressBar(refresh_rate=5)", "Progress()"),
    ],
)
def test_callbacks(given, native, tmp_path):
    name = given.partition("(")[0]
    source = f"from lightning.pytorch.callbacks import {name}\n\ncallback = {given}\n"
    assert f"callback = {native}\n" in rewritten(tmp_path, source)


MODULE = "import lightning as L\n\n\nclass Net(L.LightningModule):\n"


@pytest.mark.parametrize(
    ("given", "native"),
    [
        ("def on_train_epoch_end(self): ...", "def on_train_epoch_end(self): ..."),
        ("def on_train_start(self): ...", "def on_fit_start(self): ..."),
        ("def on_test_epoch_end(self) -> None: ...", "def on_test_end(self) -> None: ..."),
        ("def on_train_batch_start(self, batch, batch_idx): ...", "def on_step_start(self): ..."),
        (
            "def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx=0): print(batch)",
            "def on_validation_step_end(self, trainer, outputs, batch, batch_idx): print(batch)",
        ),
        (
            "def on_save_checkpoint(self, checkpoint): checkpoint['x'] = 1",
            "def on_save_checkpoint(self, trainer, checkpoint): checkpoint['x'] = 1",
        ),
        ("def f(self): return self.hparams.a.b", "def f(self): return self.hparams.a.b"),
        ("def f(self): self.hparams.lr = 1", "def f(self): self.hparams.lr = 1"),
        ("def f(self): return self.hparams.get('a')", "def f(self): return self.hparams.get('a')"),
        ("def f(self): return self.global_rank", "def f(self): return self.trainer.rank"),
        (
            "def f(self): self.log('a', 1, True, on_step=True)",
            "def f(self): self.log('a', 1, prog_bar=True)",
        ),
        ("def f(self): self.log('a', 1, batch_size=3)", "def f(self): self.log('a', 1, weight=3)"),
        ("def f(self): self.log('a', 1, reduce_fx=max)", "def f(self): self.log('a', 1, reduce=\"max\")"),
        (
            "def f(self): self.trainer.should_stop = True",
            'def f(self): self.trainer.stop("should_stop was set")',
        ),
        (
            "def f(self): return self.trainer.logged_metrics.get('test_acc')",
            'def f(self): return self.trainer.metrics.get("test/acc")',
        ),
    ],
)
def test_modules(given, native, tmp_path):
    text = rewritten(tmp_path, f"{MODULE}    {given}\n")
    assert text == f"from paceline import TrainModule\n\n\nclass Net(TrainModule):\n    {native}\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("def on_train_batch_end(self, outputs, batch, batch_idx): print(batch)", "no batch; "),
        ("def on_train_batch_start(self, batch, batch_idx): return -1", "trainer.loop.end_epoch()"),
        ("def on_save_checkpoint(self, checkpoint): del checkpoint['state_dict']", "hooks put there"),
        ("def on_train_epoch_end(self, outputs): print(outputs)", "which has no outputs"),
        ("def training_step(self, batch, batch_idx, optimizer_idx): ...", "self.optimizers()"),
        ("def validation_epoch_end(self, outputs): ...", "on_validation_end(self)"),
        ("def on_made_up(self): ...", "docs/extending/loop.md"),
        ("def f(self): return self.trainer.made_up", "docs/extending/trainer-view.md"),
        (
            "def f(self): return self.trainer.callback_metrics['train_loss']",
            '"train/loss_epoch" is the mean',
        ),
        ("def f(self): self.log('a', 1, reduce_fx=torch.median)", "write reduce="),
        ("def f(self): self.clip_gradients(o)", "clip_grad_norm"),
        (
            "def f(self): self.log('a', self.acc)\n"
            "    def on_validation_epoch_end(self): self.acc.compute()",
            'self.trainer.metrics["val/..."]',
        ),
        (
            "def on_train_start(self): self.x = 1\n    def on_fit_start(self): ...",
            "write its lines into on_fit_start",
        ),
        (
            "def f(self): self.acc = 1\n    def on_train_start(self): self.acc.reset()\n"
            "    def validation_step(self, batch, batch_idx): self.acc(batch)",
            "on_fit_start is before the sanity pass, which uses acc",
        ),
        ("def f(self, c): self.save_hyperparameters(c, ignore=['x'])", "leave the call out"),
        ("def f(self): self.log('a', 1, add_dataloader_idx=False)", "write it in monitor="),
        ("def f(self, path): return torch.load(path)['state_dict']", "a checkpoint is a folder"),
        ("def f(self): rows = self.trainer.test(self); return rows[1]", "one dict of all dataloaders"),
    ],
)
def test_modules_that_are_left(given, said, tmp_path):
    report = found(tmp_path / "net.py", f"{MODULE}    {given}\n")
    left = [f for f in report.findings if f.group is Group.REWRITE and not f.automatic]
    assert any(said in finding.text for finding in left), left
    assert "# paceline: " in report.rewritten.decode()


def test_names_of_its_own_stay(tmp_path):
    source = (
        "from lightning import LightningModule, Trainer\n"
        "from lightning.pytorch.callbacks import ModelCheckpoint\n\n\n"
        "class Checkpoint:\n    pass\n\n\n"
        "class Base(LightningModule):\n    def freeze(self): ...\n\n\n"
        "class Net(Base):\n"
        "    def __init__(self):\n        self.logger = print\n\n"
        "    def training_step(self, batch):\n"
        "        self.logger(self.current_epoch)\n        self.freeze()\n\n\n"
        "ModelCheckpoint()\n"
    )
    text = rewritten(tmp_path, source)
    assert "from paceline.callbacks import Checkpoint as PacelineCheckpoint\n" in text
    assert text.endswith("PacelineCheckpoint()\n")
    assert "self.logger(self.epoch)" in text
    assert "# paceline" not in text


def test_layout_and_comments_stay(tmp_path):
    source = (
        '"""Trains."""\r\n\r\n# why Lightning\r\nimport lightning as L  # noqa\r\n\r\n'
        "trainer = L.Trainer(\r\n    max_epochs=1,  # one\r\n    logger=False,  # none\r\n)\r\n"
    )
    path = tmp_path / "train.py"
    path.write_bytes(source.encode())
    text = analyse(path).rewritten.decode()
    assert text == (
        '"""Trains."""\r\n\r\n# why Lightning\r\nfrom paceline import Trainer\r\n\r\n'
        "trainer = Trainer(\r\n    max_epochs=1,  # one\r\n    loggers=False,  # none\r\n)\r\n"
    )


RESULTS = """\
import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import CombinedLoader


class Net(L.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.save_hyperparameters(args)
        self.width = self.hparams.width


def callbacks(monitors):
    return [
        *[ModelCheckpoint(monitor=one, mode="min") for one in monitors],
        ModelCheckpoint(monitor="val_loss", save_top_k=2),
        EarlyStopping("val/loss/dataloader_idx_1"),
    ]


def main(net, loader, **options):
    several = callbacks(["val/a", "val/b"])
    trainer = L.Trainer(check_val_every_n_epoch=2, callbacks=several, logger=CSVLogger("x"), **options)
    trainer.fit(net, CombinedLoader([loader, loader], "max_size_cycle"))
    (values,) = trainer.test(net, loader)
    lists = trainer.validate(net, loader)
    print(values["test_acc"], lists[0]["val_loss/dataloader_idx_1"], trainer.logger.log_dir)
    for one in several[:2]:
        print(one.best_model_path, one.best_model_score)
    print(trainer.checkpoint_callback.last_model_path)
    net.freeze()
    return Timer("00:00:01:00")
"""
WRITTEN = (
    'self.hparams.update(args if hasattr(args, "keys") else vars(args))',
    'Checkpoint(monitor=one, mode="min", name=one.replace("/", "-"))',
    'Checkpoint(monitor="val_loss", keep=1, keep_best=2, mode="min", name="val_loss-2")',
    'EarlyStopping(monitor="val/1/loss", mode="min")',
    'Trainer(validate_every="2ep", callbacks=several, loggers=CSVLogger(), **options)',
    'CombinedLoader([loader, loader], mode="cycle")',
    "values = trainer.test(net, loader)",
    'print(values["test/acc"], lists["val/1/loss"], trainer.folder)',
    "print(one.best, one.best_score)",
    "print(trainer.run.latest)",
    "net.requires_grad_(False).eval()",
)


def test_what_programs_do_with_results_is_translated(tmp_path):
    report = found(tmp_path / "train.py", RESULTS.replace("def main(net,", "def main(net: Net,"))
    text = report.rewritten.decode()
    assert [one for one in WRITTEN if one not in text] == [], text
    lines = text.splitlines()
    marked = [lines[i + 1].strip() for i, line in enumerate(lines) if "# paceline: " in line]
    assert [line.partition("(")[0] for line in marked] == ["trainer = Trainer", "return Timer"]
