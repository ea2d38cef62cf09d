"""Secrets in options and hparams are in no file of a run; files have the user's umask."""

import json
import os
import stat
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import yaml
from helpers.environment import clean_environment
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.tools.debug.started_command import started_by
from paceline.trainer.utils.secrets import MASK, is_secret, masked, masked_command

SECRETS = {
    "api_key": "k-1-secret-value",
    "hub_token": "hf_2-secret-value",
    "password": "3-secret-value",
    "wandb": {"mode": "offline", "apiKey": "4-secret-value"},
    "database": "postgres://me:5-secret-value@host/runs",
}
OPEN = {"pad_token": "<pad>", "label_key": "label", "num_keys": 3, "token_dropout": 0.1, "monkey": "see"}


class Net(TrainModule):
    def __init__(self, fails=False, **options):
        super().__init__()
        self.net, self.fails, self.options = nn.Linear(3, 1), fails, options

    def training_step(self, batch):
        if self.fails and self.global_step:
            raise ArithmeticError("of the user")
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder, module):
    data = DataLoader(TensorDataset(torch.zeros(8, 3)), 4)
    trainer = Trainer(run_dir=folder, accelerator="cpu", progress=False, max_epochs=1)
    return trainer, trainer.fit(module, data)


def files_with_a_secret(folder):
    return [
        f"{path}: {line[:100]}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        for line in path.read_bytes().decode(errors="replace").splitlines()
        if "secret-value" in line
    ]


def test_hparams_that_look_like_secrets_are_masked_everywhere(tmp_path):
    parsed = Namespace(lr=0.1, inner=Namespace(**SECRETS))
    trainer, run = fit(tmp_path, Net(**SECRETS, **OPEN, parsed=parsed))
    trainer.export(tmp_path / "exported")
    assert files_with_a_secret(tmp_path) == []
    recorded = yaml.safe_load((run.folder / "config.yaml").read_text())["module"]["hparams"]
    assert recorded["api_key"] == recorded["wandb"]["apiKey"] == MASK
    assert recorded["database"] == f"postgres://me:{MASK}@host/runs"
    assert recorded["parsed"]["inner"]["password"] == MASK
    for name, value in OPEN.items():
        assert recorded[name] == value


def test_a_checkpoint_asks_for_what_it_does_not_keep(tmp_path):
    class Named(Net):
        def __init__(self, api_key, width=3):
            super().__init__()
            self.key = api_key

    _, run = fit(tmp_path, Named("k-1-secret-value"))
    assert files_with_a_secret(tmp_path) == []
    with pytest.raises(PacelineError, match=r"needs(.|\n)*api_key"):
        Named.load_from_checkpoint(run.latest)
    assert Named.load_from_checkpoint(run.latest, api_key="other").key == "other"


def test_crash_reports_are_masked_too(tmp_path):
    with pytest.raises(ArithmeticError):
        fit(tmp_path, Net(fails=True, **SECRETS))
    assert list(tmp_path.rglob("crash-rank-0.txt"))
    assert files_with_a_secret(tmp_path) == []


FORMS = [
    "https://host/data?x=1&token=1-secret-value&y=2",
    "https://bucket/key?X-Amz-Credential=2-secret-value&X-Amz-Date=2026&X-Amz-Signature=3-secret-value",
    "https://account.blob/x?sv=2026&sig=4-secret-value",
    "access_token=5-secret-value",
    "https://6-secret-value@host/repository",
    "https://me:7-secret-value@host/repository",
    "postgres://me:8@-secret-value@host/runs",
    "Authorization: Bearer 9-secret-value",
    "curl -H 'authorization: Basic 10-secret-value'",
    "Bearer 11-secret-value",
    "connecting with {'api_key': '12-secret-value', 'user': 'me'} failed",
    'connecting with {"password": "13-secret-value 13-secret-value"} failed',
    "AccountName=me;AccountKey=14-secret-value",
]
"""Texts that hold a secret, as tools and services write them."""


@pytest.mark.fault(47)
def test_each_form_of_a_secret_is_masked_in_every_file_of_a_run(tmp_path, monkeypatch):
    options = [word for number, form in enumerate(FORMS) for word in (f"--option-{number}", form)]
    options += ["--header", "Authorization:", "Bearer", "15-secret-value"]
    monkeypatch.setattr(sys, "argv", ["train.py", *options])
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", *options])
    for number, form in enumerate(FORMS):
        monkeypatch.setenv(f"HF_OPTION_{number}", form)
    monkeypatch.setenv(
        "HF_LONG", f"{'x' * 260}://me:{'16-secret-value' * 10}@host"
    )  # cut within the password
    headers = {"Authorization": "Bearer 17-secret-value", "X-Auth": "18-secret-value"}

    class Failing(Net):
        def training_step(self, batch):
            if self.global_step:
                self.trainer.log_line("\n".join(FORMS))
                raise ConnectionError("\n".join(FORMS))
            return super().training_step(batch)

    module = Failing(urls=FORMS, headers=headers, **{f"option_{n}": form for n, form in enumerate(FORMS)})
    data = DataLoader(TensorDataset(torch.zeros(8, 3)), 4)
    trainer = Trainer(
        run_dir=tmp_path, accelerator="cpu", progress=False, callbacks=Checkpoint(every=1), log_every=1
    )
    with pytest.raises(ConnectionError):
        trainer.fit(module, data)
    found = {path.name.split(".")[0] for path in tmp_path.rglob("*") if path.is_file()}
    assert {"config", "env", "log", "crash-rank-0", "manifest", "events"} <= found
    assert files_with_a_secret(tmp_path) == []
    crash = next(tmp_path.rglob("crash-rank-0.txt")).read_text()
    assert f"https://host/data?x=1&token={MASK}&y=2" in crash
    assert f"https://me:{MASK}@host/repository" in crash


@pytest.mark.parametrize(
    "text",
    [
        "ssh://git@github.com/me/runs",
        "s3://bucket/runs?versionId=3",
        "def login(token: str, password: str) -> None:",
        "pad_token='<pad>', eos_token: </s>",
        "user@host:/data",
        "KeyError: 'label'",
        "bearer of news",
        "tokens: 5, author=me, assignment=3",
        "https://host/a:b@c",
    ],
)
def test_texts_without_a_secret_stay(text):
    assert masked(text) == text


def test_options_of_the_command_are_masked(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "from paceline import Trainer, TrainModule\n"
        "class Net(TrainModule):\n"
        "    def __init__(self):\n        super().__init__(); self.net = nn.Linear(3, 1)\n"
        "    def training_step(self, batch):\n        return self.net(batch[0]).mean()\n"
        "    def configure_optimizers(self):\n"
        "        return torch.optim.SGD(self.parameters(), lr=0.1)\n"
        "trainer = Trainer(accelerator='cpu', devices=1, max_steps=2, progress=False, loggers=False)\n"
        "trainer.fit(Net(), DataLoader(TensorDataset(torch.zeros(8, 3)), 4))\n"
    )
    options = ["--api-key", "k-1-secret-value", "hub.token=hf_2-secret-value", "--password=3-secret-value"]
    options += ["--lr", "0.1", "--pad-token", "<pad>"]
    environment = clean_environment()
    done = subprocess.run(
        [sys.executable, str(script), *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert files_with_a_secret(tmp_path / "runs") == []
    found = json.loads((tmp_path / "runs/net/1/env.json").read_text())
    assert found["command"][1:] == [
        "--api-key", MASK, f"hub.token={MASK}", f"--password={MASK}", "--lr", "0.1", "--pad-token", "<pad>"
    ]  # fmt: skip
    with pytest.raises(PacelineError, match="the run's command had a secret, which is not kept"):
        started_by(tmp_path / "runs/net/1", 1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("key", "0123456789abcdefXYZ", True),
        ("key", "image", False),
        ("private_key", "x", True),
        ("HF_TOKEN", "x", True),
        ("token", "x", True),
        ("accessToken", "x", True),
        ("eos_token", "</s>", False),
        ("image_token", "<image>", False),
        ("token_count", "5", False),
        ("keyboard", "0123456789abcdefXYZ", False),
        ("client_secret", "x", True),
        ("secretary", "x", False),
        ("password", "", False),
        ("password", None, False),
        ("api_key", 7, False),
        ("Authorization", "Bearer x", True),
        ("proxy_auth", "x", True),
        ("X-Amz-Signature", "x", True),
        ("sig", "x", True),
        ("signature_length", "x", False),
        ("author", "x", False),
    ],
)
def test_which_names_look_like_secrets(name, value, expected):
    assert is_secret(name, value) == expected


def test_an_option_without_a_value_masks_no_other_option():
    assert masked_command(["--token", "--lr", "0.1"])[2] == "0.1"


def test_a_command_that_a_script_has_changed_is_taken_too():
    assert masked_command(["train.py", {"lr": 0.1}, 3]) == ["train.py", "{'lr': 0.1}", "3"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_umask_of_the_user(mask, tmp_path):
    """safetensors by itself writes files that only their owner can read."""
    usual = os.umask(mask)
    try:
        trainer, run = fit(tmp_path / "runs", Net())
        trainer.export(tmp_path / "exported")
        trainer.predict(Predicts(), DataLoader(TensorDataset(torch.zeros(8, 3)), 4), out=tmp_path / "out")
    finally:
        os.umask(usual)
    assert run.latest.is_dir()
    for path in [p for part in ("runs", "exported", "out") for p in Path(tmp_path / part).rglob("*")]:
        expected = (0o777 if path.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


class Predicts(Net):
    def predict_step(self, batch):
        return self.net(batch[0])


def test_secrets_inside_of_mappings_of_a_command_are_masked():
    words = ["fit", "data={class: a:B, token: hf_1}", "x+=[{api_key: k}]", '{"password": "p"}', "a={b: 1}"]
    assert masked_command([*words, "--hub", "[1", "hub={token: hf_1", "--glob", "[a-z"]) == [
        "fit",
        "data={class: 'a:B', token: '***'}",
        "x+=[{api_key: '***'}]",
        "{password: '***'}",
        "a={b: 1}",
        "--hub",
        "[1",
        "hub=***",
        "--glob",
        "[a-z",
    ]
