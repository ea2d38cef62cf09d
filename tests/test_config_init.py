"""``paceline config init``: on a terminal, through a pipe, and from other trainers' files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers.environment import clean_environment
from helpers.ranks import run_ranks
from helpers.terminal import Terminal

import paceline
from paceline.trainer.config.yaml_reader import read_yaml_file

from .compat.configs.examples import EXAMPLES, FULL_JSON, REFUSED, write

pytestmark = pytest.mark.launch


def init(folder, *arguments, code=0, **variables):
    words = ["config", "init", *arguments]
    usual = {"CUDA_VISIBLE_DEVICES": ""}
    done = run_ranks("paceline", 1, *words, folder=folder, check=False, environment=usual | variables)
    assert done.codes == [code], done.output
    assert "Traceback" not in done.stderr
    if code:
        assert len(done.stderr.splitlines()) <= 12
        assert done.stderr.startswith("error: ")
    return done


def trainer_of(folder, name="paceline.yaml"):
    content = read_yaml_file(folder / name).content
    assert [*content] == ["trainer"]
    return content["trainer"]


def test_answers_on_a_terminal(tmp_path):
    with Terminal(tmp_path, "config", "init") as terminal:
        terminal.answer("Where does it run", "?")
        terminal.expect("slurm: srun starts all ranks.")
        terminal.answer("Where does it run", "sevral")
        terminal.expect("did you mean: several?")
        terminal.answer("Where does it run", "several")
        terminal.answer("Number of machines", "1")
        terminal.expect("allowed: an integer from 2 to 10000")
        terminal.answer("Number of machines", "")
        terminal.answer("Address of the machine", "10.0.0.7")
        terminal.answer("Port there", "70000")
        terminal.expect("allowed: an integer from 1 to 65535")
        terminal.answer("Port there", "29601")
        terminal.answer("Accelerator", "cpu")
        terminal.answer("Ranks on each machine", "3")
        terminal.answer("Strategy", "hsdp")
        terminal.answer("Groups of ranks that hold the same shards", "4")
        terminal.expect("6 ranks cannot be divided into 4 groups of one size")
        terminal.answer("Groups of ranks that hold the same shards", "3")
        terminal.answer("Free gathered parameters", "no")
        terminal.answer("Keep the shards in the host's memory", "")
        terminal.answer("Compute activations again", "y")
        terminal.answer("Precision", "bf61")
        terminal.expect("did you mean: bf16?")
        terminal.answer("Precision", "bf16")
        terminal.answer("torch.compile", "blocks")
        terminal.answer("Check that all ranks", "yes")
        assert terminal.end() == 0, terminal.printed
    command = (
        "paceline launch --nnodes 2 --nproc 3 --rdzv-backend c10d --rdzv-endpoint 10.0.0.7:29601 "
        "-m paceline fit RECIPE --config paceline.yaml"
    )
    assert f"wrote paceline.yaml\nnext, on each machine:\n  {command}\n" in terminal.printed
    assert trainer_of(tmp_path) == {
        "accelerator": "cpu",
        "devices": 3,
        "num_nodes": 2,
        "strategy": {
            "class": "HSDP",
            "replicate": 3,
            "reshard_after_forward": False,
            "activation_checkpointing": True,
        },
        "precision": "bf16",
        "compile": "blocks",
        "debug": True,
    }


@pytest.mark.soak
def test_the_return_key_takes_defaults_for_this_machine(tmp_path):
    with Terminal(tmp_path, "config", "init", "--strategy", "deepspeed") as terminal:
        for question in ("Where does it run", "Accelerator", "Ranks on each machine"):
            terminal.answer(question, "")
        terminal.answer("DeepSpeed's JSON file", "none.json")
        terminal.expect("there is no such file")
        terminal.answer("DeepSpeed's JSON file", "")
        terminal.answer("ZeRO stage", "3")
        terminal.answer("Keep the optimizer's state", "yes")
        terminal.answer("Compute activations again", "")
        terminal.answer("Precision (32, bf16, fp16, bf16-true, fp8)", "")
        terminal.answer("torch.compile", "")
        assert terminal.end() == 0, terminal.printed
    assert trainer_of(tmp_path) == {
        "accelerator": "auto",
        "devices": 1,
        "strategy": "deepspeed_stage_3_offload",
        "precision": "32",
        "compile": False,
    }


@pytest.mark.parametrize(
    "answered", [0, pytest.param(1, marks=pytest.mark.soak)], ids=["before torch is imported", "after it"]
)
def test_ctrl_c_writes_nothing(tmp_path, answered):
    questions = ["Where does it run", "Accelerator"]
    with Terminal(tmp_path, "config", "init") as terminal:
        for question in questions[:answered]:
            terminal.answer(question, "")
        terminal.interrupt(questions[answered], "nothing was written")
        assert terminal.end() == 130
    assert "Traceback" not in terminal.printed
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_asked_about(tmp_path):
    file = tmp_path / "paceline.yaml"
    file.write_text("mine\n")
    with Terminal(tmp_path, "config", "init") as terminal:
        terminal.answer("paceline.yaml exists already; replace it?", "n")
        assert terminal.end() == 130
    assert file.read_text() == "mine\n"
    assert "nothing was written" in terminal.printed


def test_through_a_pipe_nothing_is_asked(tmp_path):
    done = init(tmp_path)
    assert done.stdout.splitlines() == [
        "wrote paceline.yaml",
        "next:",
        "  paceline fit RECIPE --config paceline.yaml",
        "`paceline recipes` lists what RECIPE may be",
    ]
    assert trainer_of(tmp_path) == {
        "accelerator": "auto",
        "devices": 1,
        "strategy": "auto",
        "precision": "32",
        "compile": False,
    }
    done = init(tmp_path, code=1)
    assert "paceline.yaml exists already\n  fix: --force replaces it" in done.stderr
    init(tmp_path, "--force", "--yes", "--accelerator", "cpu", "--devices", "2", "--no-debug")
    assert trainer_of(tmp_path)["debug"] is False


def test_options_answer_the_same_questions(tmp_path):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    done = init(
        *(tmp_path, "my.yaml", "--environment", "slurm", "--machines", "4", "--accelerator", "gpu"),
        *("--devices", "8", "--strategy", "deepspeed", "--strategy-option", "config=ds.json"),
        *("--precision", "bf16", "--compile", "max-autotune", "--debug", "--numa-affinity"),
    )
    command = "srun --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 paceline fit RECIPE --config my.yaml"
    assert f"next:\n  {command}\n" in done.stdout
    assert trainer_of(tmp_path, "my.yaml") == {
        "accelerator": "gpu",
        "devices": 8,
        "num_nodes": 4,
        "strategy": {"class": "DeepSpeed", "config": "ds.json"},
        "precision": "bf16",
        "compile": "max-autotune",
        "debug": True,
        "numa_affinity": True,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategy", "fspd"], "error: --strategy: that is none of the choices\n  got: fspd"),
        (["--devices", "0"], "allowed: a count, ids such as"),
        (["--accelerator", "gpu", "--devices", "2"], "there is no 'gpu' device on this machine"),
        (["--machines", "two"], "--machines: that is no such number"),
        (["--strategy", "fsdp", "--strategy-option", "stage=3"], "got: stage=3\n  allowed: reshard_after"),
        (["--strategy", "ddp", "--strategy-option", "x=3"], "this strategy has no options"),
        (
            [
                *("--strategy", "deepspeed", "--strategy-option", "stage=0"),
                *("--strategy-option", "offload=yes"),
            ],
            "no use for --strategy-option offload",
        ),
        (["--strategy", "deepspeed", "--precision", "64"], "--precision: that is none of the choices"),
        (["--strategy", "single", "--devices", "2"], "single is for one device, and there are 2 ranks"),
        (["--port", "3"], "no use for --port with the other answers"),
        (["--json"], "--json is the report of --from"),
        (["--from", "x.yaml", "--devices", "2"], "--from takes all answers from the file"),
        (["--from", "none.yaml"], "cannot be read\n  where: none.yaml"),
        (["none/paceline.yaml"], "is in a folder that is not there"),
        (["."], "is a folder"),
    ],
)
def test_wrong_options_are_one_message(arguments, said, tmp_path):
    assert said in init(tmp_path, *arguments, code=1).stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_from_each_of_accelerates_kinds(name, tmp_path):
    example = EXAMPLES[name]
    write(tmp_path, example)
    done = init(tmp_path, "--from", "default_config.yaml")
    assert trainer_of(tmp_path) == example.trainer
    lines = done.stdout.splitlines()
    rows = lines[: lines.index("wrote paceline.yaml")]
    in_file = [line for line in example.text.splitlines() if not line.endswith("_config:")]
    assert len([row for row in rows if row.startswith("default_config.yaml:")]) == len(in_file)
    text = (tmp_path / "paceline.yaml").read_text()
    for key in example.trainer:
        assert re.search(rf"^  # .+\n  {key}:", text, re.MULTILINE)
    fit = "paceline fit RECIPE --config paceline.yaml"
    commands = lines[lines.index("wrote paceline.yaml") + 2 : -1]
    machines = example.world[1]
    if machines == 1:
        assert commands == [f"  {fit}"]
    else:
        assert len(commands) == (2 if name == "two machines" else 1)
        assert all(command.endswith(fit) for command in commands)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_written_nowhere(name, tmp_path):
    write(tmp_path, REFUSED[name])
    done = init(tmp_path, "--from", "default_config.yaml", code=1)
    assert "default_config.yaml cannot be served, and nothing was written" in done.stderr
    assert not (tmp_path / "paceline.yaml").exists()
    assert "  refused  " in done.stdout


def test_from_a_deepspeed_file_as_json(tmp_path):
    (tmp_path / "ds.json").write_text(FULL_JSON)
    done = init(tmp_path, "zero.yaml", "--from", "ds.json", "--json")
    report = json.loads(done.stdout)
    assert report["source"] == "DeepSpeed"
    assert report["file"] == "zero.yaml"
    assert report["trainer"] == trainer_of(tmp_path, "zero.yaml")
    assert {"path", "place", "value", "became", "outcome"} == set(report["notes"][0])
    text = (tmp_path / "zero.yaml").read_text()
    assert "#   optimizer (ds.json:8), elsewhere: configure_optimizers returns torch.optim.AdamW(" in text


def test_what_is_written_is_what_pyyaml_reads_too(tmp_path):
    write(tmp_path, EXAMPLES["ZeRO 2 by JSON"])
    init(tmp_path, "--from", "default_config.yaml")
    text = (tmp_path / "paceline.yaml").read_text()
    assert yaml.safe_load(text)["trainer"] == trainer_of(tmp_path)


def test_each_argument_that_may_be_written_is_one_of_the_trainers():
    from paceline.commands.config.file import COMMENTS
    from paceline.trainer.config.arguments import TrainerArguments

    assert set(COMMENTS) <= set(TrainerArguments.model_fields)


def test_from_does_not_import_torch(tmp_path):
    write(tmp_path, EXAMPLES["FSDP 2"])
    code = (
        "import sys; from paceline.__main__ import app\n"
        "app(['config', 'init', '--from', 'default_config.yaml'], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path, "paceline.yaml").exists()


def test_the_page_shows_what_is_printed_and_written(tmp_path):
    page = (Path(paceline.__file__).parent / "docs" / "guides" / "config-init.md").read_text()
    configs = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "default_config.yaml").write_text(configs[0])
    done = init(tmp_path, "--from", "default_config.yaml")
    assert f"```text\n{done.stdout}```" in page
    assert (tmp_path / "paceline.yaml").read_text() == configs[1]
