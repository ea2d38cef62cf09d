"""Every argument of Trainer: what is refused and how it is said, what is accepted and how it is read."""

import inspect
import math
import re
from datetime import timedelta

import pytest
import torch
from helpers.messages import says

from paceline import PacelineError, Trainer, tools
from paceline.callbacks import Callback, EarlyStopping, JSONLogger, Profiler
from paceline.durations import Duration
from paceline.other_trainers.arguments import OF_TRAINER
from paceline.strategies import AutocastBF16, Precision, Single
from paceline.trainer.config.arguments import TrainerArguments

_WHOLE = "an integer of at least 1"
_NOT_WHOLE = [0, -1, 2.5, "three", True, math.nan, [3]]
_NOT_POSITIVE = [0, -1.0, "big", math.inf, math.nan, True]
_NOT_DURATION = [0, -5, 1.5, "2 weeks", "0.5st", "-1ep", True, timedelta(0), []]
_NOT_LIMIT = [-1, 1.5, -0.5, "half", True, math.nan]
_A_SWITCH = ["maybe", 2, "", []]
_SWITCHED = "True, False"

# (argument, values that must be refused, words of what is allowed)
REFUSED = [
    ("strategy", ["dpp", "", 3, Single, None], "auto, single"),
    ("precision", ["bf-16", "8", 8, 16.0, True, None, torch.bfloat16, ["32"]], "bf16"),
    ("accelerator", ["", 3, None, "gpuu"], "cpu"),
    ("devices", [0, -2, 1.5, True, None, "two", "", "0,,1", "0", [], [-1], ["a"], [True], {}], "a count"),
    ("num_nodes", [0, "two"], "1"),
    ("max_epochs", _NOT_WHOLE, _WHOLE),
    ("max_steps", _NOT_WHOLE, _WHOLE),
    ("min_epochs", _NOT_WHOLE, _WHOLE),
    ("min_steps", _NOT_WHOLE, _WHOLE),
    ("max_time", [10, 1.5, True, "500st", "2ep", "soon", "-1h", timedelta(0)], '"30min"'),
    ("global_batch_size", _NOT_WHOLE, _WHOLE),
    ("accumulate", [*_NOT_WHOLE, None], _WHOLE),
    ("batch_size", [32, "256", "largest", "", True], "'auto', or None"),
    ("clip_grad_norm", _NOT_POSITIVE, "a number above 0"),
    ("clip_grad_value", _NOT_POSITIVE, "a number above 0"),
    ("validate_every", _NOT_DURATION, '"0.25ep"'),
    ("log_every", _NOT_DURATION, '"30s"'),
    ("reload_dataloaders_every_n_epochs", [-1, 1.5, "two", True, None], "an integer of at least 0"),
    ("sanity_val_batches", [-2, 1.5, "two", True, None], "an integer of at least 0, or -1"),
    ("limit_train_batches", _NOT_LIMIT, "a count (int), a part (float"),
    ("limit_val_batches", _NOT_LIMIT, "a count (int), a part (float"),
    ("limit_test_batches", _NOT_LIMIT, "a count (int), a part (float"),
    ("limit_predict_batches", _NOT_LIMIT, "a count (int), a part (float"),
    ("fast_dev_run", ["perhaps", -1, 2.5, [1]], "True, False, or a number of steps"),
    ("overfit_batches", _NOT_LIMIT, "a count (int), a part (float"),
    ("callbacks", ["EarlyStoping", 3, [3], EarlyStopping, [EarlyStopping], [None]], "paceline.callbacks"),
    ("progress", _A_SWITCH, _SWITCHED),
    ("checkpoint", _A_SWITCH, _SWITCHED),
    ("record", _A_SWITCH, _SWITCHED),
    ("loggers", ["tensorbord", 3, [Callback()], [JSONLogger]], "paceline.callbacks.Logger"),
    ("fp32_precision", ["high", True, 32, ""], "ieee, tf32, bf16, or None"),
    ("channels_last", _A_SWITCH, _SWITCHED),
    ("nonfinite", ["rais", "", True, None, "skip:0", "skip:", 3], "'raise', 'skip', 'skip:100', 'ignore'"),
    (
        "on_data_error",
        ["skp", "skip:0", "retry:x", True, None],
        "'raise', 'retry', 'retry:5', 'skip', 'skip:100'",
    ),
    ("max_restarts", [-1, "x", True, 1.5], "an integer of at least 0"),
    ("timeouts", [30, "5st", True, {"steps": "1min"}, {"step": 5}, {"save": "x"}], "phases: start, first"),
    ("debug", ["x"], "False"),
    ("sync_batchnorm", ["x"], "False"),
    ("profile", ["x", "true", 1, None, Profiler, [Profiler()]], "True, False, or an object of paceline"),
    ("seed", [-1, 2**63, 1.5, "x", True], "an integer from 0"),
    ("deterministic", _A_SWITCH, _SWITCHED),
    ("numa_affinity", _A_SWITCH, _SWITCHED),
    ("compile", ["x", None, 3, {}, {"mod": "default"}, {"blocks": 1}], "True, False, 'blocks', a mode"),
    ("run_dir", [3, True, []], "a folder"),
    ("name", ["", "a b", "/a", "a/", "a//b", "../up", "..", "a/../../b", 3], "letters, digits"),
]


def refusal(**arguments):
    with pytest.raises(PacelineError) as caught:
        Trainer(**arguments)
    text = str(caught.value)
    assert len(text.splitlines()) <= 12, text
    return text


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        pytest.param(name, value, allowed, id=re.sub(r" at 0x\w+", "", f"{name}={value!r}"))
        for name, values, allowed in REFUSED
        for value in values
    ],
)
def test_a_wrong_value_is_refused_at_construction(name, value, allowed):
    text = refusal(**{name: value})
    assert re.search(rf"\b{name}\b", text), text
    assert "got" in text
    where = re.search(r"allowed(?: in this version)?: ([^\n]*)", text)
    assert where, text
    assert allowed in where[1]


def test_the_table_above_has_every_argument():
    assert {name for name, *_ in REFUSED} == set(TrainerArguments.model_fields)


def test_the_signature_is_what_is_validated():
    parameters = inspect.signature(Trainer.__init__).parameters
    named = {n: p.default for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    fields = {name: field.default for name, field in TrainerArguments.model_fields.items()}
    assert fields.pop("callbacks") == list(named.pop("callbacks"))
    assert named == fields


def test_the_value_is_shown():
    text = refusal(max_epochs="three", nonfinite="rais")
    assert "max_epochs: got 'three'; allowed: an integer of at least 1, or None" in text
    assert (
        "nonfinite: got 'rais'; allowed: 'raise', 'skip', 'skip:100', 'ignore'; did you mean 'raise'?"
        in text
    )


@pytest.mark.parametrize("name", ["max_epochs", "devices", "precision"])
def test_a_value_of_many_lines_is_cut_to_one(name):
    text = refusal(**{name: torch.zeros(30, 2)})
    assert len(text.splitlines()) == 2
    assert len(text) < 400


def test_all_violations_together():
    text = refusal(max_epoch=3, max_steps=0, precision="bf-16", strategy="dpp", seed=-1, devices=0)
    assert text.startswith("Trainer: 6 invalid arguments")
    for name in ("max_epoch", "max_steps", "precision", "strategy", "seed", "devices"):
        assert len(re.findall(rf"^  {name}: ", text, re.MULTILINE)) == 1, text


def test_a_wrong_device_is_reported_with_the_others():
    says(refusal(accelerator="gpuu", max_steps=0), "max_steps", "gpuu")


def test_very_many_violations_still_fit():
    counts = ("max_epochs", "max_steps", "global_batch_size", "accumulate", "sanity_val_batches")
    limits = [f"limit_{kind}_batches" for kind in ("train", "val", "test", "predict")]
    text = refusal(**dict.fromkeys([*counts, *limits, "seed", "log_every", "validate_every"], -2))
    assert text.startswith("Trainer: 12 invalid arguments")
    assert len(text.splitlines()) == 8  # 12 with the traceback's head, the user's line and the code
    assert text.endswith("and 6 more")


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("max_epoch", "max_epochs"),
        ("maxepochs", "max_epochs"),
        ("Max_Steps", "max_steps"),
        ("precison", "precision"),
        ("stratgy", "strategy"),
        ("callback", "callbacks"),
        ("device", "devices"),
        ("clip_gradient_norm", "clip_grad_norm"),
        ("limit_training_batches", "limit_train_batches"),
        ("validate_evry", "validate_every"),
    ],
)
def test_nearest_names(typo, meant):
    assert f"{typo}: no such argument; did you mean {meant}?" in refusal(**{typo: 1})


def test_a_name_like_none_of_ours_gets_no_guess():
    text = refusal(zzz=1)
    assert "zzz: no such argument" in text
    assert "did you mean" not in text


@pytest.mark.parametrize(("theirs", "ours"), OF_TRAINER.items())
def test_peers_names(theirs, ours):
    assert f"{theirs}: unknown argument; use {ours}" in refusal(**{theirs: 1})


@pytest.mark.parametrize("name", ["lr", "optimizer", "weight_decay", "lr_scheduler"])
def test_what_belongs_to_the_optimizer_is_answered_with_configure_optimizers(name):
    assert f"{name}: unknown argument; use configure_optimizers of the module: return" in refusal(
        **{name: 1}
    )


def test_a_batch_size_is_the_loader_s_or_the_global_one():
    text = refusal(batch_size=32)
    ours = "'auto', or None; a number is the DataLoader's batch_size or global_batch_size"
    assert f"batch_size: got 32; allowed: {ours}" in text


def test_peers_names_lead_to_names_that_exist():
    for theirs, ours in OF_TRAINER.items():
        assert theirs not in TrainerArguments.model_fields
        function = re.match(r"paceline\.tools\.(\w+)\(", ours)
        if function:
            assert callable(getattr(tools, function[1]))
            continue
        ours = re.sub(
            r"fit\(.*\)|the DataLoader's \w+( or )?|configure_optimizers of .*|torch\.[\w.()]+",
            "",
            ours,
        )
        for name in ours.split(" or "):
            name = name.partition("(")[0].partition("=")[0]
            assert not name or name in TrainerArguments.model_fields, theirs


def test_two_arguments_that_exclude_each_other():
    text = refusal(global_batch_size=64, accumulate=2)
    assert "accumulate: follows from global_batch_size; give one of the two" in text


def test_two_callbacks_of_a_class_need_names():
    text = refusal(callbacks=[EarlyStopping("val/loss"), EarlyStopping("val/accuracy")])
    assert "callbacks: two of EarlyStopping; give each a name=" in text
    Trainer(
        accelerator="cpu",
        callbacks=[EarlyStopping("val/loss"), EarlyStopping("val/accuracy", name="accuracy")],
    )


def test_a_profiler_is_given_once():
    text = refusal(callbacks=[Profiler()], profile=Profiler())
    assert "profile: callbacks has a Profiler; give one of the two" in text
    for given, count in ((False, 0), (True, 1), (Profiler(), 1)):
        callbacks = Trainer(accelerator="cpu", profile=given).callbacks
        assert sum(isinstance(callback, Profiler) for callback in callbacks) == count
        assert given in (True, False) or given in callbacks


def test_several_ranks_cannot_be_started_from_pytest():
    text = refusal(accelerator="cpu", devices=4)
    says(text, "pytest would be started again in each rank, so it cannot start 4 ranks", "got: devices=4")
    assert "devices=1" in text


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("max_epochs", 3, 3),
        ("max_epochs", "3", 3),  # as it comes out of a file or a command line
        ("max_epochs", 3.0, 3),
        ("max_epochs", None, None),
        ("max_steps", "1000", 1000),
        ("max_time", "30min", "30min"),
        ("max_time", "00:30:00", "00:30:00"),
        ("max_time", timedelta(hours=1), timedelta(hours=1)),
        ("global_batch_size", "256", 256),
        ("accumulate", "4", 4),
        ("clip_grad_norm", 1, 1.0),
        ("clip_grad_norm", "0.5", 0.5),
        ("clip_grad_value", 1e-3, 1e-3),
        ("validate_every", 500, 500),
        ("validate_every", "500st", "500st"),
        ("validate_every", "0.25ep", "0.25ep"),
        ("validate_every", timedelta(minutes=10), timedelta(minutes=10)),
        ("validate_every", None, None),
        ("log_every", "00:30:00", "00:30:00"),
        ("log_every", 1, 1),
        ("sanity_val_batches", 0, 0),
        ("limit_train_batches", 1, 1),
        ("limit_train_batches", 1.0, 1.0),
        ("limit_val_batches", 0, 0),
        ("limit_test_batches", 0.5, 0.5),
        ("limit_predict_batches", None, None),
        ("overfit_batches", 2, 2),
        ("overfit_batches", 0.1, 0.1),
        ("fast_dev_run", True, True),
        ("fast_dev_run", 2, 2),
        ("loggers", (), []),
        ("loggers", False, False),
        ("nonfinite", "skip", "skip"),
        ("nonfinite", "skip:3", "skip:3"),
        ("on_data_error", "retry:5", "retry:5"),
        (
            "timeouts",
            {"step": "10min", "save": timedelta(hours=1)},
            {"step": "10min", "save": timedelta(hours=1)},
        ),
        ("timeouts", False, False),
        ("seed", 0, 0),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("name", "vit/large-2.1", "vit/large-2.1"),
        ("devices", 1, 1),
        ("devices", [0], [0]),
        ("num_nodes", 1, 1),
        ("max_restarts", 0, 0),
    ],
)
def test_good_values(name, value, read):
    got = getattr(Trainer(**{"accelerator": "cpu", name: value}).settings, name)
    assert got == read
    assert type(got) is type(read)  # 1 is one batch, 1.0 is all of them


def test_a_folder_may_be_a_path(tmp_path):
    assert Trainer(accelerator="cpu", run_dir=tmp_path).settings.run_dir == tmp_path


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("32", "32"), (32, "32"), ("32-true", "32"), ("fp32", "32"), ("no", "32"),
        ("bf16", "bf16"), ("bf16-mixed", "bf16"), ("bfloat16", "bf16"),
        ("fp16", "fp16"), (16, "fp16"), ("16", "fp16"), ("16-mixed", "fp16"),
        ("64", "64"), (64, "64"), ("64-true", "64"), ("double", "64"),
        ("bf16-true", "bf16-true"), ("fp16-true", "fp16-true"), ("16-true", "fp16-true"),
    ],
)  # fmt: skip
def test_names_of_precisions(given, name, monkeypatch):
    # Whether this device can compute in it is another question.
    monkeypatch.setattr(torch, "mm", lambda *_: None)
    assert Trainer(accelerator="cpu", precision=given).strategy.precision.name == name


def test_objects_are_taken_as_they_are():
    strategy, precision, callback = Single(), AutocastBF16(), EarlyStopping("val/loss")
    trainer = Trainer(accelerator="cpu", strategy=strategy, precision=precision, callbacks=callback)
    assert trainer.strategy is strategy
    assert trainer.strategy.precision is precision
    assert callback in trainer.callbacks


def test_no_argument_is_needed():
    trainer = Trainer()
    assert type(trainer.strategy.precision) is Precision
    assert trainer.max_epochs == 1
    assert trainer.max_steps is None


def test_the_first_limit_is_enough():
    assert Trainer(accelerator="cpu", max_steps=5).max_epochs is None
    assert Trainer(accelerator="cpu", max_time="1h").max_epochs is None


def test_a_duration_object_serves():
    every = Duration.parse("2ep")
    assert Trainer(accelerator="cpu", validate_every=every).settings.validate_every == every


def test_built_in_callbacks_and_loggers_have_names():
    trainer = Trainer(callbacks=["ema", "Stragglers"], loggers=["csv", "-tensorboard"], run_dir=None)
    kinds = [type(one).__name__ for one in trainer.callbacks]
    assert {"EMA", "Stragglers", "CSVLogger", "JSONLogger", "Curves"} <= set(kinds)
    assert "TensorBoard" not in kinds
    assert type(Trainer(callbacks="swa", run_dir=None).callbacks[0]).__name__ == "SWA"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"callbacks": "early_stopping"}, "callbacks: EarlyStopping needs monitor"),
        ({"callbacks": "emma"}, "did you mean: EMA?"),
        ({"loggers": "wandbb"}, "did you mean: WandB?"),
    ],
)
def test_a_name_that_cannot_be_used_is_explained(given, said):
    assert said in refusal(**given)


def of_lightning(name, *bases):
    return type(name, bases, {"__module__": "lightning.pytorch.callbacks"})


@pytest.mark.parametrize(
    ("argument", "wrong", "place", "answer"),
    [
        ("callbacks", 3, "callbacks[1], of type int: 3", "objects of paceline.callbacks.Callback"),
        ("callbacks", EarlyStopping, "callbacks[1], the class EarlyStopping", "EarlyStopping(...)"),
        ("callbacks", of_lightning("ModelCheckpoint")(), "of type ModelCheckpoint", "import Checkpoint"),
        ("callbacks", of_lightning("EarlyStopping")(), "of type EarlyStopping", "import EarlyStopping"),
        (
            "callbacks",
            type("Mine", (of_lightning("Callback"),), {})(),
            "of type Mine",
            "import Callback",
        ),
        ("loggers", of_lightning("WandbLogger")(), "loggers[1], of type WandbLogger", "import WandB"),
        ("loggers", EarlyStopping("val/loss"), "loggers[1], of type EarlyStopping", "callbacks=[...]"),
    ],
)
def test_the_wrong_one_of_several_is_named(argument, wrong, place, answer):
    text = refusal(**{argument: [JSONLogger(), wrong]})
    assert place in text
    assert answer in text
    assert "JSONLogger object" not in text
    for line in re.findall(r"from paceline[\w.]* import \w+", text):
        exec(line, {})


def test_one_wrong_object_and_several_are_named():
    assert "import Checkpoint" in refusal(callbacks=of_lightning("ModelCheckpoint")())
    text = refusal(callbacks=["no_such", 3, JSONLogger(), 4.5])
    assert "callbacks[1], of type int: 3; callbacks[3], of type float: 4.5" in text
