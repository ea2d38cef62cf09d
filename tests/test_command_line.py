"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.ranks import Job, run_ranks
from helpers.run_folders import rows_of, write_run
from typer.testing import CliRunner

from paceline import PacelineError
from paceline.__main__ import app
from paceline.config.load import load
from paceline.recipes.vit_cifar10 import PRESETS

ARGUMENTS = ["preset=tiny", "data=digits", "epochs=1", "trainer.limit_train_batches=2"]


def paceline(*arguments, cwd, **variables):
    """In a process that has imported torch: the commands that start one are tested below."""
    options = {"folder": cwd, "seconds": 120, "check": False, "environment": variables}
    return run_ranks("paceline", 1, *arguments, **options)


@pytest.mark.parametrize(
    ("words", "begins", "has"),
    [
        (["--help"], "Usage: ", "fit"),
        (["recipes"], "", "vit-cifar10"),
        (["--version"], "paceline ", ""),
        (["plot_lr", "--help"], "Usage: ", ""),
        (["plot-lr", "--help"], "Usage: ", ""),
    ],
)
def test_help_names_with_underscores_recipes_and_the_version(words, begins, has):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert done.output.startswith(begins)
    assert has in done.output


def test_fit_trains_a_recipe(tmp_path):
    done = paceline("fit", "vit-cifar10", *ARGUMENTS, cwd=tmp_path, TEST_PICTURES="1")
    assert done.codes == [0], done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("paceline ")
    assert "in runs/vit-cifar10/1" in lines[0]
    assert "global batch 32 = 32 samples x 1 rank x 1 micro-batch" in lines
    assert "\r" not in done.stdout  # no bar into a pipe
    assert (tmp_path / "runs/vit-cifar10/1/curves.png").exists()


def test_mistakes_are_one_message_with_places(tmp_path):
    (tmp_path / "my.yaml").write_text(
        "preset: tiny\nepoch: 3\ntrainer:\n  max_epoch: 2\n  max_steps: three\n"
    )
    done = paceline("fit", "vit-cifar10", "--config", "my.yaml", "model.widht=3", cwd=tmp_path)
    assert done.codes == [1]
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 12
    assert "epoch (my.yaml:2): no such key; did you mean epochs?" in done.stderr
    assert "trainer.max_epoch (my.yaml:4): no such argument; did you mean max_epochs?" in done.stderr
    assert "trainer.max_steps (my.yaml:5): got 'three'" in done.stderr
    assert "model.widht (the command line): no such key; did you mean width?" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fit", "vit-cifar"], "did you mean: vit-cifar10?"),
        (["fit", "vit-cifar10", "preset=tny"], "did you mean: tiny?"),
        (["fit", "vit-cifar10", "tiny"], "key=value"),
        (["fit", "vit-cifar10", "--config", "none.yaml"], "cannot be read"),
        (["fit", "vit-cifar10", *ARGUMENTS, "--resume", "latest"], "no checkpoint to resume from"),
    ],
)
def test_a_mistake_says_what_to_do(arguments, said, tmp_path):
    done = paceline(*arguments, cwd=tmp_path)
    assert done.codes == [1]
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", -5),
        ("model.dropout", 5),
        ("model.dropout", "nan"),
        ("model.drop_path", -0.1),
        ("weight_decay", "nan"),
        ("weight_decay", -1),
        ("learning_rate", "inf"),
        ("model.mlp_ratio", 0),
    ],
)
def test_values_of_the_recipe_out_of_range_are_refused(name, value):
    with pytest.raises(PacelineError, match=rf"{name} \(the command line\): got "):
        load("paceline.recipes.vit_cifar10", [], [f"{name}={value}"]).checked()


def test_yaml_reads_as_people_mean_it(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text('preset: tiny\nlearning_rate: 1e-3\nepochs: "3"\ntrainer: {name: no, max_steps: "3"}\n')
    settings = ["trainer.precision=bf16", "weight_decay=5e-2"]
    config = load("paceline.recipes.vit_cifar10", [file], settings).checked()
    assert (config.learning_rate, config.weight_decay, config.epochs) == (1e-3, 5e-2, 3)
    assert config.model.width == PRESETS["tiny"]["model"]["width"]
    assert config.trainer == {"name": "no", "max_steps": "3", "precision": "bf16"}


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)],
)
def test_a_signal_saves_and_stops(number, code, tmp_path):
    short = ["trainer.limit_train_batches=2", "trainer.limit_val_batches=1"]
    arguments = ["preset=tiny", "data=digits", *short]
    folder = tmp_path / "runs/vit-cifar10/1"
    words = ["fit", "vit-cifar10", *arguments, "epochs=100000"]
    with Job("paceline", 1, *words, folder=tmp_path, environment={"TEST_PICTURES": "1"}) as job:
        deadline = time.monotonic() + 240
        while not (folder / "checkpoints/latest").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(job.pids[0], number)
        ended = job.wait()
    assert (ended.codes, ended.left) == ([code], []), ended.output
    assert f"ended: {signal.Signals(number).name} received" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert (folder / "curves.png").exists()
    latest = (folder / "checkpoints/latest").read_text()
    resumed = paceline("fit", "vit-cifar10", *arguments, "epochs=1", "--resume", "auto", cwd=tmp_path)
    assert resumed.codes == [0], resumed.output
    # At its limit already: no step more, and a validation only where the signal has cut one short.
    assert (folder / "checkpoints/latest").read_text() == latest
    at_limit = ("nothing to do: the run is at its limit already", "ended: max_epochs=1 reached")
    assert any(said in resumed.stdout for said in at_limit), resumed.stdout


def test_plot_and_report_print_what_they_wrote(tmp_path):
    write_run(tmp_path / "runs" / "net" / "1", rows_of([2.0, 1.0]))
    write_run(tmp_path / "runs" / "net" / "2", rows_of([3.0, 1.0]))
    drawn = paceline("plot", "runs", "--metric", "loss", "--x", "epoch", cwd=tmp_path)
    assert (drawn.codes, drawn.stdout.strip()) == ([0], "curves.png"), drawn.output
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    written = paceline("report", "runs/net/1", "runs/net/2", "--out", "r.html", cwd=tmp_path)
    assert (written.codes, written.stdout.strip()) == ([0], "r.html"), written.output
    assert "2 runs: net" in (tmp_path / "r.html").read_text()
    wrong = paceline("report", "runs/nett", cwd=tmp_path)
    assert wrong.codes == [1]
    assert "runs/net?" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_help_needs_no_torch():
    """Of every command: `paceline COMMAND --help` is immediate."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from paceline.__main__ import app\n"
        "names = [[c.name or c.callback.__name__.replace('_', '-')] for c in app.registered_commands]\n"
        "for group in app.registered_groups:\n"
        "    inside = group.typer_instance.registered_commands\n"
        "    names += [[group.name], *([group.name, c.name] for c in inside)]\n"
        "for words in [[], *names]:\n"
        "    done = CliRunner().invoke(app, [*words, '--help'])\n"
        "    assert done.exit_code == 0 and 'Usage: ' in done.output, (words, done.output)\n"
        "assert len(names) > 20\n"
        "print({'torch', 'numpy'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr


def test_an_option_that_does_not_exist_is_exit_code_2(tmp_path):
    done = paceline("fit", "digits", "--epochs", "3", cwd=tmp_path)
    assert done.codes == [2]
    assert "No such option: --epochs" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("init", "Did you mean 'config init'?"),
        ("show", "Did you mean 'recipes show' or 'config show' or 'checkpoint show'?"),
        ("fitt", "Did you mean 'fit'?"),
    ],
)
def test_a_command_of_a_group_is_named_with_its_group(word, meant):
    done = CliRunner().invoke(app, [word])
    assert done.exit_code == 2
    assert f"No such command '{word}'. {meant}" in done.output


def test_help_may_be_asked_for_in_short(tmp_path):
    done = paceline("fit", "-h", cwd=tmp_path)
    assert done.codes == [0], done.output
    assert done.stdout.startswith("Usage: ")


def test_the_help_of_a_recipe_has_its_settings(tmp_path):
    done = paceline("fit", "digits", "--help", cwd=tmp_path)
    assert done.codes == [0], done.output
    assert "model.width" in done.stdout
    assert "Numbers in each hidden layer." in done.stdout
    assert "preset=quick: epochs=2" in done.stdout


def test_one_step_that_keeps_nothing(tmp_path):
    done = paceline("fit", "digits", "trainer.fast_dev_run=1", cwd=tmp_path)
    assert done.codes == [0], done.output
    assert not list(tmp_path.rglob("config.yaml"))
    assert "best val/accuracy" not in done.stdout


def test_settings_written_as_options_are_explained(tmp_path):
    for words in (["fit"], ["validate"], ["config", "check"]):
        done = paceline(*words, "digits", "--max_epochs", "3", cwd=tmp_path)
        assert "Settings are KEY=VALUE: max_epochs=... or trainer.max_epochs=..." in done.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("train.py", "train.py is a script"),
        ("parts.py:Net", "A TrainModule class."),
        ("c.yaml", "Numbers in each hidden layer."),
    ],
)
def test_the_help_of_any_target(target, said, tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('it was run')\n")
    (tmp_path / "parts.py").write_text("class Net:\n    pass\n")
    (tmp_path / "c.yaml").write_text("recipe: digits\n")
    done = paceline("fit", target, "--help", cwd=tmp_path)
    assert done.codes == [0], done.output
    assert said in done.stdout


def test_a_script_is_not_run_by_other_commands(tmp_path):
    (tmp_path / "train.py").write_text("open('it-was-run', 'w')\n")
    for words in (
        ["validate"],
        ["config", "check"],
        ["recipes", "show"],
        ["estimate"],
        ["config", "schema"],
    ):
        done = paceline(*words, "train.py", cwd=tmp_path)
        assert done.codes == [1]
        assert "is no recipe" in done.stderr
    assert not (tmp_path / "it-was-run").exists()


def test_the_weights_are_those_of_the_run_that_is_named_else_of_the_newest(tmp_path):
    short = ["trainer.limit_train_batches=1", "trainer.progress=false"]
    for epochs in (1, 2):
        assert paceline("fit", "digits", f"epochs={epochs}", *short, cwd=tmp_path).codes == [0]
    named = paceline("validate", "runs/digits/1", cwd=tmp_path)
    assert "weights: runs/digits/1/checkpoints/step-00000001" in named.stdout, named.output
    newest = paceline("validate", "digits", "--json", cwd=tmp_path)
    assert "weights: runs/digits/2/checkpoints/step-" in newest.stderr
    assert json.loads(newest.stdout).keys() == {"val/loss", "val/accuracy"}
    given = paceline("test", "digits", "--weights", "runs/digits/1", cwd=tmp_path)
    assert "weights: runs/digits/1/checkpoints/step-00000001" in given.stdout
    written = paceline("predict", "runs/digits/1", "--out", "p", cwd=tmp_path)
    assert "weights: runs/digits/1/" in written.stdout
    both = paceline("validate", "runs/digits/1", "--weights", "runs/digits/2", cwd=tmp_path)
    assert "weights: runs/digits/2/checkpoints/step-" in both.stdout, both.output


def test_a_secret_of_a_setting_is_in_no_message_and_no_file(tmp_path):
    (tmp_path / "parts.py").write_text(
        "from paceline.recipes.digits import build\n"
        "from paceline.recipes.digits import Config as Base\n\n\n"
        "class Config(Base):\n    hub: dict[str, str] = {}\n"
    )
    secret = "hub={token: hf_hidden1, user: me}"
    refused = paceline("fit", "parts.py", secret, "hub.token=[hf_hidden1]", cwd=tmp_path)
    assert "hub.token (the command line): got ['***']" in refused.stderr
    done = paceline("fit", "parts.py", secret, "trainer.max_steps=1", cwd=tmp_path)
    assert done.codes == [0], done.output
    shown = paceline("config", "show", "parts.py", secret, cwd=tmp_path)
    texts = [done.output, shown.output, refused.output]
    texts += [file.read_text(errors="replace") for file in tmp_path.glob("runs/**/*") if file.is_file()]
    assert not [text for text in texts if "hf_hidden1" in text]
    assert "hub.token" in shown.stdout


def test_estimate_shows_a_table_json_and_a_picture(tmp_path):
    words = ["estimate", "digits", "--devices", "8", "--gpu", "h100"]
    done = paceline(*words, "--picture", "new/memory.png", cwd=tmp_path)
    assert done.codes == [0], done.output
    assert "single: rejected, it computes on one of 8 devices" in done.stdout
    assert "ddp: recommended" in done.stdout
    assert "Time: a model, no measurement" in done.stdout
    assert (tmp_path / "new" / "memory.png").exists()
    slow = paceline(*words, "--assume", "network=1e9", "--per-node", "1", "--json", cwd=tmp_path)
    found = json.loads(slow.stdout)
    assert (found["device"], found["devices"], found["assumed"]["network"]) == ("H100", 8, 1e9)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu", "H1000"], "did you mean: H100"),
        (["--memory", "lots"], "memory is no number of bytes"),
        (["--assume", "network"], "--assume network=12.5e9"),
    ],
)
def test_estimate_explains_wrong_arguments(words, said, tmp_path):
    done = paceline("estimate", "digits", *words, cwd=tmp_path)
    assert done.codes == [1]
    assert said in done.stderr
