"""``--write`` leaves out hooks without a counterpart that do nothing; all others stay, with a comment."""

import pytest

from paceline.compat.migrate.analysis import analyse

HEAD = "import lightning as L\n\n\n"
MODULE = "class Net(L.LightningModule):\n    step = 1\n\n"
CALLBACK = "class Watch(L.Callback):\n    step = 1\n\n"
DATA = "class Data(L.LightningDataModule):\n    step = 1\n\n"
ENDS = "def on_validation_end(self): self.step = 2\n"
TRAIN = "def on_fit_start(self): self.step = 2\n"


def written(tmp_path, source):
    path = tmp_path / "net.py"
    path.write_text(HEAD + source)
    report = analyse(path)
    assert report.error is None
    return report.rewritten.decode()


@pytest.mark.parametrize(
    ("head", "hook"),
    [
        (MODULE, "def on_before_zero_grad(self, optimizer): ..."),
        (MODULE, "def on_validation_batch_start(self, batch, batch_idx): pass"),
        (MODULE, "def on_validation_model_eval(self): super().on_validation_model_eval()"),
        (MODULE, "def optimizer_zero_grad(self, e, b, o): return super().optimizer_zero_grad(e, b, o)"),
        (MODULE, 'def on_sanity_check_start(self): """Nothing."""'),
        (MODULE + "    " + TRAIN, "def on_train_start(self): ..."),
        (MODULE + "    " + ENDS, "def on_validation_epoch_end(self): super().on_validation_epoch_end()"),
        (CALLBACK, "def on_before_backward(self, trainer, pl_module, loss): ..."),
        (DATA, "def on_exception(self, exception): ..."),
    ],
)
def test_a_hook_that_does_nothing_is_left_out(head, hook, tmp_path):
    text = written(tmp_path, f"{head}    {hook}\n")
    assert "# paceline:" not in text
    assert hook[4:].partition("(")[0] + "(" not in text


@pytest.mark.parametrize(
    "source",
    [
        MODULE + "    def on_before_zero_grad(self, optimizer): print(optimizer)\n",
        MODULE + "    def configure_gradient_clipping(self, o, v=None, a=None): ...\n",  # it clips nothing
        MODULE + "    def on_validation_model_eval(self): ...\n",  # the mode stays as it is
        MODULE
        + "    def optimizer_zero_grad(self, e, b, o): super().optimizer_zero_grad(e, b, self.step)\n",
        MODULE + "    def on_epoch_never(self): ...\n    def f(self): self.on_epoch_never()\n",
        MODULE
        + "    def on_before_zero_grad(self, optimizer):\n        for x in optimizer:\n            x()\n",
        MODULE + "    @f\n    def on_before_zero_grad(self, optimizer): ...\n",
        "class Net(L.LightningModule):\n    def on_before_zero_grad(self, optimizer): ...\n",
        MODULE
        + "    def on_before_backward(self, loss): print(loss)\n\n\nclass More(Net):\n    step = 2\n\n"
        + "    def on_before_backward(self, loss): ...\n",
    ],
)
def test_a_hook_that_does_something_stays_with_a_comment(source, tmp_path):
    text = written(tmp_path, source)
    assert "# paceline:" in text
    assert [line for line in source.splitlines() if "def on_" in line or "def configure" in line] == [
        line for line in text.splitlines() if "def on_" in line or "def configure" in line
    ]


def test_every_hook_that_there_is_leaves_few_comments(tmp_path):
    source = MODULE + "".join(
        f"    def {name}(self): ...\n"
        for name in ("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_after_backward")
    )
    text = written(tmp_path, source)
    kept = [line.split()[1] for line in text.splitlines() if " def " in line]
    assert kept == ["on_fit_start(self):", "on_fit_end(self):", "on_before_optimizer_step(self):"]
