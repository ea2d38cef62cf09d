"""What --write knows of variables: checkpoints of a run, results of evaluations, what functions return."""

import pytest

from paceline.compat.migrate.analysis import analyse

MODULE = "import lightning as L\n\n\nclass Net(L.LightningModule):\n"


def found(path, source):
    path.write_text(source)
    report = analyse(path)
    assert report.error is None
    return report


def rewritten(tmp_path, source):
    return found(tmp_path / "train.py", source).rewritten.decode()


WITH_CHECKPOINT = """\
from lightning import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer


def main(module, loader):
    timer = Timer()
    best = ModelCheckpoint(monitor="val_loss")
    {made}
    print({read})
"""


@pytest.mark.parametrize(
    ("made", "read", "native"),
    [
        ("t = Trainer(callbacks=[best, timer])", "best.best_model_path", "best.best"),
        ("t = Trainer(callbacks=[EarlyStopping('a'), best])", "best.last_model_path", "best.latest"),
        ("t = Trainer(callbacks=best)", "best.best_model_score", "best.best_score"),
        ("t = Trainer()", "t.checkpoint_callback.best_model_path", "t.run.best"),
        ("t = Trainer()", "t.checkpoint_callback.last_model_path", "t.run.latest"),
        ("t = Trainer(callbacks=[best, ModelCheckpoint()])", "best.best_model_path", "best.best"),
        ("best = ModelCheckpoint()", "best.best_model_path", "best.latest"),
        ("best = ModelCheckpoint(*loader)", "best.best_model_path", "best.best"),
        ("t = Trainer(callbacks=[best]); best = loader", "best.best_model_path", "best.best"),
        ("best = loader(ModelCheckpoint())", "best.best_model_path", None),
    ],
)
def test_the_path_of_a_checkpoint_is_that_of_the_callback(made, read, native, tmp_path):
    text = rewritten(tmp_path, WITH_CHECKPOINT.format(made=made, read=read))
    assert text.endswith(f"print({native or read})\n")
    assert ("# paceline: best.best_model_path: it is best where this" in text) == (native is None)


@pytest.mark.parametrize(
    ("made", "native"),
    [
        ("callbacks=[ModelCheckpoint(monitor='a')]", "t.run.best"),
        ("callbacks=[ModelCheckpoint(save_top_k=2)]", "t.run.latest"),
        ("callbacks=others()", "(t.run.best or t.run.latest)"),
    ],
)
def test_the_best_of_callbacks_that_monitor_nothing_is_the_newest(made, native, tmp_path):
    head = "from lightning import Trainer\nfrom lightning.pytorch.callbacks import ModelCheckpoint\n"
    source = f"{head}\nt = Trainer({made})\nprint(t.checkpoint_callback.best_model_path)\n"
    assert rewritten(tmp_path, source).endswith(f"print({native})\n")


def test_a_path_is_translated_in_a_function_that_did_not_make_the_callback(tmp_path):
    source = WITH_CHECKPOINT.format(made="t = Trainer(callbacks=[best])", read="t")
    report = found(tmp_path / "x.py", f"{source}\n\ndef other(best):\n    return best.best_model_path\n")
    assert report.rewritten.decode().endswith("return best.best\n")


RETURNED = """\
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


def make(**options):
    best = ModelCheckpoint(monitor="val_loss")
    return Trainer(callbacks=[best], max_epochs=1, val_check_interval=0.5, **options), best


def main(module, loader):
    trainer, best = make()
    trainer.fit(module, loader)
    return trainer.current_epoch, best.best_model_path
"""


def test_what_a_function_of_the_file_returns_is_known(tmp_path):
    report = found(tmp_path / "x.py", RETURNED)
    assert "trainer.epoch, best.best\n" in report.rewritten.decode()


def test_arguments_beside_others_that_are_not_seen_are_translated(tmp_path):
    text = found(tmp_path / "x.py", RETURNED).rewritten.decode()
    assert 'Trainer(callbacks=[best], max_epochs=1, validate_every="0.5ep", **options)' in text
    source = "from lightning import Trainer\n\nTrainer(logger=False, **options)\n"
    assert "Trainer(loggers=False, **options)" in rewritten(tmp_path, source)  # no max_epochs=1000


@pytest.mark.parametrize(
    ("given", "native"),
    [
        ("(r,) = t.test(m, d)\n    print(r['test_loss'])", 'r = t.test(m, d)\n    print(r["test/loss"])'),
        ("[r] = t.validate(m, d)\n    r['acc']", 'r = t.validate(m, d)\n    r["val/acc"]'),
        ("r = t.test(m, d)\n    r[0]['acc']", 'r = t.test(m, d)\n    r["test/acc"]'),
        (
            "r = t.test(m, d)\n    r = load()\n    r[0]['acc']",
            "r = t.test(m, d)\n    r = load()\n    r[0]['acc']",
        ),
        (
            "r = t.test(m, d)\n    r[1]['acc/dataloader_idx_1'], 'acc' in r[0], 'a' in r[2]",
            'r["test/1/acc"], "test/acc" in r, \'a\' in r[2]',
        ),
        (
            "'acc/dataloader_idx_1' in t.test(m, d)[1], 'val_loss' in t.callback_metrics",
            '"test/1/acc" in t.test(m, d), "val/loss" in t.metrics',
        ),
        ("r = t.test(m, d)\n    r[1]", None),
        ("r = t.test(m, d)\n    len(r)", None),
        ("for r in t.test(m, d): print(r)", None),
        ("r = t.validate(m, d)[0]\n    r['train_acc']", None),
    ],
)
def test_results_of_an_evaluation_are_one_dict(given, native, tmp_path):
    source = f"from lightning import Trainer\n\n\ndef main(t: Trainer, m, d):\n    {given}\n"
    text = rewritten(tmp_path, source)
    assert text.endswith(f"    {native}\n") if native is not None else "# paceline: " in text


@pytest.mark.parametrize(
    ("step", "body", "marked"),
    [
        ("training_step", "return {'loss': loss, 'keys': keys}", True),
        ("training_step", "k = F.normalize(x)\n        return {'loss': loss, 'k': k}", True),
        ("training_step", "return {'loss': loss, 'acc': acc, 'n': len(batch)}", False),
        ("training_step", "a = x.mean() / 2\n        return {'loss': loss, 'a': -a.detach()}", False),
        ("validation_step", "return {'loss': loss, 'logits': logits}", True),
        ("validation_step", "return self.shared(batch)", True),
        ("predict_step", "return {'logits': logits}", False),
    ],
)
def test_a_step_that_returns_more_than_numbers_is_left_with_a_comment(step, body, marked, tmp_path):
    shared = "    def shared(self, batch): return {'logits': self(batch)}\n"
    source = f"{MODULE}{shared}    def {step}(self, batch, batch_idx):\n        {body}\n"
    assert ("# paceline: return of" in rewritten(tmp_path, source)) == marked


def test_a_module_loaded_without_its_hook_is_left_with_a_comment(tmp_path):
    hook = "    def on_load_checkpoint(self, checkpoint): self.n = checkpoint['n']\n"
    loads = "\n\nNet.load_from_checkpoint('a.ckpt')\n"
    marked = "# paceline: Net.load_from_checkpoint: on_load_checkpoint is called only when a run resumes"
    assert marked in rewritten(tmp_path, f"{MODULE}{hook}{loads}")
    assert marked not in rewritten(tmp_path, f"{MODULE}    n = 0\n{loads}")


SHARED = """\
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val/a", 1.0, add_dataloader_idx=False)
        self.log(f"val/{dataloader_idx}", 1.0, add_dataloader_idx=False)


def callbacks(monitors):
    made = [ModelCheckpoint(monitor=one) for one in monitors]
    stops = EarlyStopping("val/mean")
    return made, stops, EarlyStopping(monitor="val/a")
"""


def test_a_monitor_whose_name_has_no_dataloader_is_marked_where_it_is_given(tmp_path):
    head = "from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint\n"
    lines = rewritten(tmp_path, f"{head}{MODULE}{SHARED}").splitlines()
    marked = [lines[i + 1].split()[0] for i, line in enumerate(lines) if "# paceline: self.log(" in line]
    assert marked == ["made", "return"]


@pytest.mark.parametrize(
    ("made", "native"),
    [
        ("t = Trainer(logger=log); t.fit(log)", "str(t.folder)"),
        ("t = Trainer(logger=log); train(t)", "str(t.folder)"),
        ("t = Trainer(logger=log)", "log.log_dir"),
        ("t = Trainer(logger=log); u = Trainer()", "log.log_dir"),
        ("", "log.log_dir"),
    ],
)
def test_the_folder_of_a_logger_is_that_of_the_one_trainer(made, native, tmp_path):
    head = "from lightning import Trainer\nfrom lightning.pytorch.loggers import CSVLogger\n"
    source = f"{head}\n\ndef main():\n    log = CSVLogger('x')\n    {made}\n    return log.log_dir\n"
    text = rewritten(tmp_path, source)
    assert text.endswith(f"return {native}\n")
    assert ("# paceline: log.log_dir" in text) == (native == "log.log_dir")


def test_a_logger_is_marked_where_it_is_written_and_not_where_it_is_named(tmp_path):
    head = "from lightning.pytorch.loggers import CSVLogger, Logger\n\n"
    text = rewritten(tmp_path, f"{head}loggers: list[Logger] = [CSVLogger('x')]\n")
    assert "# paceline: " not in text
    assert "from paceline.callbacks import CSVLogger, Logger\n" in text
    own = "class Own(Logger):\n    def log_metrics(self, metrics, step=None):\n        pass\n"
    assert "# paceline: log_metrics: write write(self, row)" in rewritten(tmp_path, f"{head}{own}")
