"""Arguments, configs and resealed checkpoints of any content: only errors of ours come out.

Each case has a seed, which a failure prints. ``--soak`` takes 2,000 cases of each kind.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import shutil
import sys
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.mutations import as_json, mutated
from helpers.recipes import loaded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline import PacelineError, Run, Trainer, TrainModule, callbacks, seed_everything, strategies, tools
from paceline.__main__ import main
from paceline.callbacks import Checkpoint, EarlyStopping
from paceline.config import RunConfig
from paceline.tools.report.page import write_report
from paceline.trainer.checkpoint.files import format as files
from paceline.trainer.checkpoint.listing import (
    describe_checkpoint,
    find_checkpoints,
    list_checkpoints,
    problem_of,
)

USUAL = {"arguments": 600, "configs": 600, "checkpoints": 50, "files": 75}
LONGEST = 3000  # characters of a message


@pytest.fixture
def cases(request):
    """The seeds of a kind of cases."""

    def of(kind):
        return range(2000 if request.config.getoption("--soak") else USUAL[kind])

    return of


def answered(seed, what, call):
    """An error of ours, of a bounded length, or none."""
    message = ""
    try:
        call()
    except PacelineError as error:
        message = str(error)
    except Exception as error:
        if not any("recorded in" in note for note in getattr(error, "__notes__", [])):
            raise AssertionError(f"seed {seed}, {what}: {type(error).__name__}: {error}") from error
    assert len(message) < LONGEST, f"seed {seed}, {what}: {len(message)} characters"


class Net(TrainModule):
    def __init__(self, width=3):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(width, 1)
        self.register_buffer("seen", torch.zeros(2))

    def training_step(self, batch):
        self.log("one", 1.0)
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch):
        return self.net(batch[0]).square().mean()

    test_step = predict_step = validation_step

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


DATA = DataLoader(TensorDataset(torch.zeros(12, 3)), 4, shuffle=True)


def quiet(**options):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "checkpoint": False}
    return Trainer(**usual, max_steps=1, run_dir=None, **options)


# -- arguments -----------------------------------------------------------------------------------


class Hostile:
    def __repr__(self):
        raise RuntimeError("no repr")

    def __bool__(self):
        raise RuntimeError("no bool")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = None


VALUES = [
    None, True, False, 0, 1, -1, 2**70, 3.5, float("nan"), float("inf"), "", "x", "x" * 100_000, "\0",
    "\udc80", "latest", "0.01", "2", "1ep", "-1st", "9" * 5000 + "st", "~nobody/x", [], [1], ["a"], (),
    (1, 2), {}, {"a": 1}, {1: 2}, set(), b"x", object(), Hostile(), nn.Linear, Net, len, range(3), int,
    timedelta(seconds=1), timedelta(0), torch.tensor(1.0), torch.device("cpu"), 1 + 2j,
]  # fmt: skip


NEEDED = {
    "ConfusionMatrix": {"classes": 2, "output": "layer"},
    "EarlyStopping": {"monitor": "val/loss"},
    "Evaluator": {"dataloader": [], "name": "other"},
    "Freeze": {"patterns": "*"},
    "OptunaPruning": {"trial": None},
    "PredictionWriter": {"path": "predictions.jsonl"},
    "SampleImages": {"classes": 2, "output": "layer"},
}
"""What a class has to be given besides the argument under test."""


def names_of(function):
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds][1:]


def calls():
    """Each public call by name, as a function of one argument."""
    found = {}
    classes = [getattr(callbacks, name) for name in callbacks.__all__]
    made = [c for c in classes if issubclass(c, callbacks.Hooks) and not inspect.isabstract(c)]
    made += [
        strategies.Single,
        strategies.DDP,
        strategies.FSDP,
        strategies.HSDP,
        strategies.DeepSpeed,
        Trainer,
    ]
    for cls in made:
        usual = NEEDED.get(cls.__name__, {})
        for name in names_of(cls.__init__):
            found[f"{cls.__name__}({name}=...)"] = lambda value, cls=cls, name=name, usual=usual: cls(
                **(usual | {name: value})
            )
    for stage, names in {
        "fit": ("resume", "allow"),
        "validate": ("weights",),
        "predict": ("weights", "out", "only_rank_zero"),
    }.items():
        for name in names:
            found[f"{stage}({name}=...)"] = lambda value, stage=stage, name=name: getattr(quiet(), stage)(
                Net(), DATA, **{name: value}
            )
    for verb in ("find_learning_rate", "find_batch_size"):
        for name in names_of(getattr(tools, verb))[3:]:
            usual = {} if name == "steps" else {"steps": 1}
            found[f"{verb}({name}=...)"] = lambda value, verb=verb, name=name, usual=usual: getattr(
                tools, verb
            )(quiet(), Net(), DATA, **(usual | {name: value}))
    found["load_from_checkpoint"] = Net.load_from_checkpoint
    found["Run"] = Run
    found["seed_everything"] = seed_everything
    found["replay(step)"] = lambda value: tools.replay(quiet(), Net(), DATA, step=value, run="nowhere")
    found["replay(run)"] = lambda value: tools.replay(quiet(), Net(), DATA, step=1, run=value)
    found["fit(module)"] = lambda value: quiet().fit(value, DATA)
    return found


def test_arguments(cases, capsys):
    made = calls()
    assert len(made) > 80
    for seed in cases("arguments"):
        chance = random.Random(seed)
        name, value = chance.choice(list(made)), chance.choice(VALUES)
        answered(seed, f"{name} with {type(value).__name__}", lambda v=value, n=name: made[n](v))


def test_several_arguments_of_the_trainer_at_once(cases):
    names = [name for name in names_of(Trainer.__init__) if name != "devices"]
    for seed in cases("arguments")[::4]:
        chance = random.Random(seed)
        given = {name: chance.choice(VALUES) for name in chance.sample(names, 6)}
        answered(seed, str(list(given)), lambda given=given: Trainer(**given))


# -- configs -------------------------------------------------------------------------------------


class Config(RunConfig):
    epochs: int = 1
    name: str = "n"
    rates: dict[str, float] = {}


PRESETS = {"tiny": {"epochs": 2}}


TEXT = """preset: tiny
epochs: 3
name: &n a name
rates: {warm: 1e-3, cold: 0.1}
trainer:
  max_steps: 5
  precision: bf16
  name: *n
"""
PIECES = [
    "[", "]", "{", "}", ":", "- ", "&a ", "*a", "*n", "!!python/object:os.system ", "? ", "|\n", ">", "%",
    "\t", "\n", "---\n", "...\n", "<<: *n\n", "\ufeff", "\u2028", "\x00", "'", '"', "#", "1e999", "0x",
    "2024-13-45",
    "~", "null", "x" * 5000, "[" * 300, "{a: " * 300, "epochs: 3\n", "3: 4\n", "9" * 5000,
]  # fmt: skip


@pytest.mark.fault(40)
def test_configs(cases, tmp_path):
    path = tmp_path / "config.yaml"
    for seed in cases("configs"):
        chance = random.Random(seed)
        data = bytearray(TEXT.encode())
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            how = chance.choice(["insert", "insert", "delete", "byte"])
            if how == "insert":
                data[at:at] = chance.choice(PIECES).encode("utf-8", "surrogatepass")
            elif how == "delete":
                del data[at : at + chance.randint(1, 12)]
            else:
                data[at] = chance.randrange(256)
        path.write_bytes(bytes(data))
        override = [f"rates={chance.choice(PIECES)}"] if chance.random() < 0.2 else []
        answered(seed, "", lambda o=override: loaded(Config, PRESETS, path, o))


# -- checkpoints ---------------------------------------------------------------------------------


def fit(folder, steps, **options):
    usual = {"accelerator": "cpu", "progress": False, "loggers": False, "name": "n", "run_dir": folder}
    kept = [Checkpoint(2, monitor="val/loss"), EarlyStopping("val/loss")]
    return Trainer(**usual, max_steps=steps, callbacks=kept).fit(Net(), DATA, DATA, **options)


def reseal(folder):
    """Write the manifest again, so that all checksums match."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["files"] = {name: files.entry_of(folder / name) for name in manifest["files"]}
    (folder / "manifest.json").write_bytes(files.sealed(manifest))


def change(folder, chance):
    """Change one thing in the manifest or the state file, and reseal; what it was."""
    name = chance.choice(["manifest.json", "state.json"])
    content = json.loads((folder / name).read_text())
    content.pop("checksum", None)
    new, what = mutated(content, chance)
    if name == "manifest.json":
        text = as_json(new).encode().removesuffix(b"\n}")
        (folder / name).write_bytes(files._with_checksum(text))
    else:
        (folder / name).write_text(as_json(new))
        reseal(folder)
    return f"{name}: {what}"


@pytest.mark.fault(39)
@pytest.mark.filterwarnings("ignore")
def test_checkpoints_that_were_changed_and_resealed(cases, tmp_path, capsys):
    made = fit(tmp_path / "made", 4).latest
    copy = tmp_path / "1/checkpoints" / made.name
    reads = {
        "ls": lambda: list(list_checkpoints(copy)),
        "show": lambda: describe_checkpoint(copy),
        "verify": lambda: [problem_of(one) for one in find_checkpoints(copy)],
        "load": lambda: Net.load_from_checkpoint(copy),
        "resume": lambda: fit(tmp_path / "resumed", 6, resume=copy),
    }
    before = {path.name for path in Path.cwd().iterdir()}
    for seed in cases("checkpoints"):
        shutil.rmtree(tmp_path / "1", ignore_errors=True)
        shutil.copytree(made, copy)
        what = change(copy, random.Random(seed))
        for name, read in reads.items():
            answered(seed, f"{name}, {what}", read)
        shutil.rmtree(tmp_path / "resumed", ignore_errors=True)
    assert {path.name for path in Path.cwd().iterdir()} - before <= {"1"}  # nothing was run
    assert paceline.Run(made.parent.parent).latest == made


# -- what a change is answered with ----------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("made"), 4).latest


def replaced(content, path, value):
    *parents, last = path
    for key in parents:
        content = content[key]
    content[last] = value


STATE = [
    (("counters", "global_step"), "4", "key counters.global_step"),
    (("counters", "samples"), -1, "key counters.samples"),
    (("ranks",), [], "key ranks"),
    (("ranks", 0, "rng", "torch", "dtype"), "load", "key ranks[0].rng.torch"),
    (("ranks", 0, "rng", "torch", "shape"), [10**12], "key ranks[0].rng.torch"),
    (("ranks", 0, "rng", "python", "items", 1, "items", 3), "x", "key ranks"),
    (("optimizers", "0", "groups", 0, "lr"), "fast", "key optimizers.0"),
    (("optimizers", "0", "groups", 0, "betas"), [1], "key optimizers.0"),
    (("callbacks", "EarlyStopping"), {"best": 1.0}, "key callbacks"),
    (("callbacks", "Checkpoint"), 3, "key callbacks.Checkpoint"),
    (("metrics", "latest"), {"val/loss": "low"}, "key metrics.latest.val/loss"),
    (("schedulers", 0, "state"), "x", "key schedulers.0.state"),
    (("hooks",), {"__kind__": "os.system", "data": "ls"}, "key hooks"),
]
MANIFEST = [
    (("weights_only",), "no", "key weights_only"),
    (("world", "size"), 0, "key world.size"),
    (("world",), None, "key world"),
    (("counters", "global_batch"), 1.5, "key counters.global_batch"),
    (("module", "hparams"), {"width": {"__kind__": "bytes", "data": 3}}, "key module.hparams.width"),
    (("module", "not_plain"), "width", "key module.not_plain"),
    (("metrics",), [], "key metrics"),
]


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    ("name", "path", "value", "said"),
    [("state.json", *case) for case in STATE] + [("manifest.json", *case) for case in MANIFEST],
)
def test_the_file_and_the_key_are_named(name, path, value, said, made, tmp_path):
    copy = tmp_path / made.name
    shutil.copytree(made, copy)
    content = json.loads((copy / name).read_text())
    replaced(content, path, value)
    content.pop("checksum", None)
    if name == "state.json":
        (copy / name).write_text(json.dumps(content))
        reseal(copy)
    else:
        (copy / name).write_bytes(files.sealed(content))
    read = Net.load_from_checkpoint if "hparams" in path else partial(fit, tmp_path / "resumed", 6)
    options = {} if "hparams" in path else {"resume": copy}
    with pytest.raises(files.CheckpointError) as raised:
        read(**options) if options else read(copy)
    assert f"{name}, {said}" in str(raised.value)


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    "text",
    [
        '{"format": 1e999}',
        '{"format": 1, "format": 1}',
        '{"format": "1"}',
        '{"format": ' + "9" * 5000 + "}",
        "[" * 100_000,
        '{"format": 1, "files": {}, "block": 0}',
    ],
)
def test_a_manifest_of_any_text_is_damaged(text, made, tmp_path):
    copy = tmp_path / made.name
    shutil.copytree(made, copy)
    (copy / "manifest.json").write_bytes(files._with_checksum(text.encode().removesuffix(b"}")))
    with pytest.raises(files.CheckpointError, match="the manifest is damaged"):
        fit(tmp_path / "resumed", 6, resume=copy)


@pytest.mark.fault(39)
def test_a_state_that_the_run_does_not_take_is_no_damage(made, tmp_path):
    """All checksums hold: a user's own object may be the one that is wrong."""
    copy = tmp_path / "n/1/checkpoints" / made.name
    shutil.copytree(made.parent.parent, tmp_path / "n/1")
    state = json.loads((copy / "state.json").read_text())
    state["callbacks"]["EarlyStopping"] = {"best": 1.0}
    (copy / "state.json").write_text(json.dumps(state))
    reseal(copy)
    with pytest.raises(files.CheckpointError, match=r"could not be loaded(.|\n)*key callbacks"):
        fit(tmp_path, 6, resume="auto")
    assert copy.is_dir()
    assert list(tmp_path.rglob("*.damaged")) == []


@pytest.mark.fault(39)
def test_predictions_are_no_checkpoint(tmp_path):
    quiet().predict(Net(), DATA, out=tmp_path / "out")
    with pytest.raises(PacelineError, match="holds predictions, and no checkpoint"):
        Net.load_from_checkpoint(tmp_path / "out")


# -- files of a run ------------------------------------------------------------------------------

BODIES = [
    *(b"", b"\n", b"3", b"null", b"[]", b"{}", b"true", b'"x"', b"\xff\xfe", b"\x00" * 100),
    *(b"[" * 1200, b"{" * 1200, b"9" * 5000, b"1e400", b"a: [", b"- 1\n- 2", b'{"a": 1}'),
    *(b"trainer: 3", b"module: 3", b"module: {class: 3}", b"!!timestamp foo", b"!!bool foo"),
    *(b'{"step": "x"}', b'{"step": 1, "train/loss": {}}', b'{"program": 3, "folder": [], "fit": {}}'),
    *(b'{"command": 3, "micro_batches": {}, "machine": 3}', b'{"machine": {"git": 3}, "world": "x"}'),
]
"""What files are replaced with, or have among their lines: of another form, and of no form."""


class Small(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trained(folder, steps, resume=None):
    trainer = Trainer(
        run_dir=folder, name="n", accelerator="cpu", progress=False, log_every=1, max_steps=steps,
        callbacks=[Checkpoint(every=2, keep=2), callbacks.StepRecord()],
        loggers=["-tensorboard", "-curves"],
    )  # fmt: skip
    return trainer.fit(Small(), DataLoader(TensorDataset(torch.zeros(16, 2)), 4), resume=resume)


def uses(run, whole):
    """What reads a run's files, by name; of commands, their words."""
    commands = [
        *(("report", run, "--out", run / "page.html"), ("diff", run, whole), ("replay", run, "--step", 3)),
        *(("checkpoint", "ls", run), ("checkpoint", "show", run), ("checkpoint", "verify", run)),
        *(("config", "show", run), ("config", "check", run)),
    ]
    return [
        lambda: Run(run).rows,
        lambda: Run(run)._repr_html_(),
        lambda: Run(run).config,
        lambda: Run(run).environment,
        lambda: Run(run).step_record,
        lambda: Run(run).load(Small, which="latest"),
        lambda: trained(run.parent.parent, 6, resume="auto"),
        *(partial(commanded, *words) for words in commands),
    ]


def commanded(*words):
    with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
        patch.setattr(sys, "argv", ["paceline", *map(str, words)])
        main()


def damaged(chance, whole):
    lines = whole.splitlines(keepends=True)
    place = chance.randrange(len(lines) + 1)
    flipped = bytearray(whole)
    for _ in range(min(len(whole), chance.choice([1, 3]))):
        flipped[chance.randrange(len(whole))] = chance.randrange(256)
    body = chance.choice(BODIES)
    among = b"".join([*lines[:place], body, b"\n", *lines[place:]])
    return chance.choice([body, body, among, bytes(flipped), whole[: chance.randrange(len(whole) + 1)]])


@pytest.mark.fault(50)
@pytest.mark.filterwarnings("ignore")
def test_a_file_of_a_run_that_is_damaged_in_any_way_costs_what_it_holds(
    tmp_path, cases, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("a damaged run was started again"))
    whole = trained(tmp_path / "whole", 4).folder
    names = [p.relative_to(whole) for p in sorted(whole.rglob("*")) if p.is_file()]
    run = tmp_path / "copy" / "n" / "1"
    for seed in cases("files"):
        chance = random.Random(seed)
        shutil.rmtree(run.parent, ignore_errors=True)
        shutil.copytree(whole, run, symlinks=True)
        # Those that people open and tools write count for more than the tensors.
        name = chance.choice([*names, *(n for n in names if n.suffix in (".yaml", ".json", ".jsonl"))])
        (run / name).write_bytes(damaged(chance, (whole / name).read_bytes()))
        use = chance.choice(uses(run, whole))
        answered(seed, f"{name}, {use}", use)
        assert "Traceback" not in "".join(capsys.readouterr()), f"seed {seed}, {name}, {use}"


@pytest.mark.fault(50)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "value"), [("env.json", "environment"), ("config.yaml", "config")])
def test_a_damaged_description_of_a_run_leaves_its_report_and_its_resume(name, value, tmp_path):
    run = trained(tmp_path, 2).folder
    for body in BODIES:
        (run / name).write_bytes(body)
        answered(body[:40], name, lambda: getattr(Run(run), value))
        assert "n/1" in write_report([run], tmp_path / "page.html").read_text()
        assert "n/1" in Run(run)._repr_html_()
    assert trained(tmp_path, 4, resume="auto").latest.name == "step-00000004"
