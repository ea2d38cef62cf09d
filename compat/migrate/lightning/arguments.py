"""Values of Lightning's arguments as they are written here."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ..edits import Put
from ..resolve import dotted, in_an_operation, is_steady
from ..tables import changes, rewrite, runs
from ..translation import UNKNOWN, Translation, Values, epochs, full_name, literal

_PRECISION = {
    "32-true": '"32"',
    "64-true": '"64"',
    "bf16-mixed": '"bf16"',
    "16-mixed": '"fp16"',
    "16-true": '"fp16-true"',
    "16": '"fp16"',
}
_STRATEGY_NAMES = {
    "ddp_spawn": "ddp",
    "ddp_notebook": "ddp",
    "ddp_fork": "ddp",
    "deepspeed": "deepspeed_stage_2",
    "dp": "ddp",
    "ddp2": "ddp",
    "fsdp_native": "fsdp",
    "fsdp_cpu_offload": None,
}
STRATEGIES = (
    "auto",
    "ddp",
    "fsdp",
    *(f"deepspeed_stage_{stage}" for stage in (1, 2, 3)),
    *(f"deepspeed_stage_{stage}_offload" for stage in (1, 2, 3)),
)
PRECISIONS = [*_PRECISION, "32", "bf16", "bf16-true", "64", "fp16"]


def trainer(values: Values) -> Translation:
    """The arguments of ``Trainer``."""
    done = Translation()
    for name, value in values.items():
        if name in _TRAINER:
            _TRAINER[name](done, value, values)
        elif literal(value) is None and name not in _NONE_MEANS_NONE:
            done.put[name] = []
    given = [literal(values.get(name)) for name in ("max_epochs", "max_time", "fast_dev_run")]
    if not any(given) and literal(values.get("max_steps")) in (None, -1):
        done.added.append(changes("with no limit it trained 1000 epochs there; here it trains one", ""))
        done.extra.append(("max_epochs", "1000"))
        done.put["max_epochs"] = []
    return done


_NONE_MEANS_NONE = ("max_time", "max_steps", "min_epochs", "min_steps")


def _max_epochs(done: Translation, value: cst.BaseExpression, values: Values) -> None:
    others = [literal(values.get(name)) for name in ("max_steps", "max_time")]
    if all(other in (None, -1) for other in others):
        if literal(value) == -1:
            done.leave("max_epochs", "a run needs a limit here: max_epochs, max_steps or max_time")
    else:
        _limit("max_epochs")(done, value, values)


def _limit(name: str) -> Callable[..., None]:
    """A number whose -1 is no limit."""

    def translate(done: Translation, value: cst.BaseExpression, _: Values) -> None:
        if literal(value) == -1:
            done.entries[name] = rewrite("leave it out: no limit is None here", "")
            done.put[name] = []
        elif literal(value) is UNKNOWN and is_steady(value):
            code = in_an_operation(value)
            done.entries[name] = rewrite("no limit is None here, and not -1")
            done.put[name] = [(name, f"None if {code} == -1 else {code}")]

    return translate


def _callbacks(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    if literal(value) is None:
        done.put["callbacks"] = []
    elif isinstance(value, (cst.Attribute, cst.Subscript, cst.Call)) and is_steady(value):
        done.entries["callbacks"] = rewrite("none of them is () here, and not None")
        done.put["callbacks"] = [("callbacks", f"{in_an_operation(value)} or ()")]


def _max_time(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    if isinstance(value, cst.Dict) and isinstance(literal(value), dict):
        parts = ", ".join(f"{unit}={amount}" for unit, amount in literal(value).items())
        done.entries["max_time"] = rewrite('write a timedelta, or a text such as "00:12:00"')
        done.put["max_time"] = [("max_time", f"timedelta({parts})")]
        done.imports.add(("datetime", "timedelta"))


def _precision(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    given = literal(value)
    if given is None:
        done.put["precision"] = []
    elif str(given) in _PRECISION:
        done.entries["precision"] = runs()
        done.put["precision"] = [("precision", _PRECISION[str(given)])]
    elif given is not UNKNOWN and str(given) not in PRECISIONS:
        done.leave("precision", 'write "32", "bf16", "fp16", "64", "bf16-true" or "fp16-true"')


def _strategy(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    given = literal(value)
    if given is UNKNOWN or given in STRATEGIES:
        return
    if given is None:
        done.put["strategy"] = []
    elif given == "ddp_find_unused_parameters_true":
        done.entries["strategy"] = rewrite("write DDP(find_unused_parameters=True), of paceline.strategies")
        done.put["strategy"] = [("strategy", "DDP(find_unused_parameters=True)")]
        done.imports.add(("paceline.strategies", "DDP"))
    elif given == "ddp_find_unused_parameters_false" or _STRATEGY_NAMES.get(given):
        new = _STRATEGY_NAMES.get(given) or "ddp"
        done.entries["strategy"] = rewrite(f'write strategy="{new}"')
        done.put["strategy"] = [("strategy", f'"{new}"')]
    else:
        done.leave("strategy", f"write one of {', '.join(STRATEGIES)}, or an object of paceline.strategies")


def _accelerator(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    given = literal(value)
    if given == "tpu":
        done.leave("accelerator", "TPUs are not supported")
    elif given in STRATEGIES and given != "auto":
        done.entries["accelerator"] = rewrite("it is called strategy here")
        done.put["accelerator"] = [("strategy", None)]
    elif given is None:
        done.put["accelerator"] = []


def _clip(done: Translation, value: cst.BaseExpression, values: Values) -> None:
    how = literal(values.get("gradient_clip_algorithm"))
    given = literal(value)
    if given is not UNKNOWN and not given:
        done.entries["gradient_clip_val"] = rewrite(
            "leave it out: nothing is clipped unless it is given", ""
        )
        done.put["gradient_clip_val"] = []
    elif how in (None, "norm", "value"):
        new = "clip_grad_value" if how == "value" else "clip_grad_norm"
        done.entries["gradient_clip_val"] = rewrite(f"it is called {new} here")
        code = f"{in_an_operation(value)} or None" if given is UNKNOWN else None  # 0 clips nothing there
        done.put["gradient_clip_val"] = [(new, code)]
    else:
        done.leave(
            "gradient_clip_val", "write clip_grad_norm=, or clip_grad_value= for the algorithm 'value'"
        )
        done.leave("gradient_clip_algorithm", "clip_grad_norm and clip_grad_value are two arguments")


def _epochs_between(done: Translation, value: cst.BaseExpression, values: Values) -> None:
    name = "check_val_every_n_epoch"
    interval = literal(values.get("val_check_interval"))
    if literal(value) is None:
        done.entries[name] = rewrite(
            "leave it out: an int in validate_every counts steps over all epochs", ""
        )
        done.put[name] = []
    elif interval is not None and interval != 1.0 and literal(value) != 1:
        done.leave(name, "validate_every is one duration; of an interval and a number of epochs keep one")
    elif interval is not None:
        done.put[name] = []
    else:
        _put_epochs(done, name, "validate_every", value)


def _put_epochs(done: Translation, name: str, new: str, value: cst.BaseExpression) -> None:
    code = epochs(value)
    if code is None:
        done.leave(name, f'write {new}="2ep", a duration')
        return
    done.entries[name] = rewrite(f"write {new}={code}")
    done.put[name] = [(new, code)]


def _interval(done: Translation, value: cst.BaseExpression, values: Values) -> None:
    name, given = "val_check_interval", literal(value)
    each = literal(values.get("accumulate_grad_batches")) or 1
    between = literal(values.get("check_val_every_n_epoch"))
    if isinstance(given, float) and 0 < given <= 1 and between in (None, 1):
        done.entries[name] = rewrite(f'write validate_every="{given:g}ep"')
        done.put[name] = [("validate_every", f'"{given:g}ep"')]
    elif isinstance(given, int) and isinstance(each, int) and given % each == 0 and between in (None, 1):
        done.entries[name] = rewrite(
            f"write validate_every={given // each}: optimizer steps over all epochs"
        )
        done.put[name] = [("validate_every", str(given // each))]
    else:
        done.leave(name, 'write validate_every="0.25ep", or a number of optimizer steps')


def _accumulate(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    if isinstance(value, cst.Dict):
        done.leave(
            "accumulate_grad_batches",
            "write callbacks=[GradientAccumulationScheduler({...})], of paceline.callbacks",
        )


def _log_every(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    if literal(value) == 0:
        done.leave("log_every_n_steps", "write loggers=False")


def _switch(off: object, name: str, put: Put | None = None) -> Callable[..., None]:
    """An argument that is left out at one of its values."""

    def translate(done: Translation, value: cst.BaseExpression, _: Values) -> None:
        given = literal(value)
        if given is None or given is off:
            done.entries[name] = rewrite("leave it out", "")
            done.put[name] = []
        elif put is not None and given is not UNKNOWN:
            done.put[name] = put

    return translate


def _profiler(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    if literal(value) is None:
        done.put["profiler"] = []
    elif literal(value) is not UNKNOWN:
        done.entries["profiler"] = rewrite("write profile=True: traces of steps 7 to 9")
        done.put["profiler"] = [("profile", "True")]


def _deterministic(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    if literal(value) == "warn":
        text = "write deterministic=True: an operation that has no deterministic algorithm is an error"
        done.leave("deterministic", text)
    elif literal(value) is None:
        done.put["deterministic"] = []


def _sampler(done: Translation, value: cst.BaseExpression, _: Values) -> None:
    if literal(value) is False:
        text = "leave it out, and give the loader a sampler over all samples: ranks share them"
        done.leave("use_distributed_sampler", text)


_BARE: Put = [("progress", "False"), ("loggers", "False"), ("checkpoint", "False")]
_TRAINER: dict[str, Callable[[Translation, cst.BaseExpression, Values], None]] = {
    "max_epochs": _max_epochs,
    "max_steps": _limit("max_steps"),
    "callbacks": _callbacks,
    "max_time": _max_time,
    "precision": _precision,
    "strategy": _strategy,
    "accelerator": _accelerator,
    "gradient_clip_val": _clip,
    "check_val_every_n_epoch": _epochs_between,
    "val_check_interval": _interval,
    "accumulate_grad_batches": _accumulate,
    "log_every_n_steps": _log_every,
    "benchmark": _switch(False, "benchmark"),
    "detect_anomaly": _switch(False, "detect_anomaly"),
    "barebones": _switch(False, "barebones", _BARE),
    "profiler": _profiler,
    "deterministic": _deterministic,
    "use_distributed_sampler": _sampler,
}


def _monitor(done: Translation, values: Values) -> None:
    """The name of a value of one of several dataloaders."""
    given = literal(values.get("monitor"))
    if isinstance(given, str) and "/dataloader_idx_" in given:
        new = full_name(given)
        if new is not None:
            done.entries["monitor"] = rewrite(f'it is called "{new}" here')
            done.put["monitor"] = [("monitor", f'"{new}"')]


def checkpoint(values: Values) -> Translation:
    """The arguments of ``ModelCheckpoint``."""
    done = Translation()
    _monitor(done, values)
    monitors = literal(values.get("monitor")) is not None
    for name, value in values.items():
        if literal(value) is None or (name.startswith("every_n") and literal(value) == 0):
            done.put[name] = []
    if not monitors:
        done.entries["mode"] = rewrite("leave it out: it belongs to monitor", "")
        done.put["mode"] = []
    elif "mode" not in values:
        done.extra.append(("mode", '"min"'))
    top = values.get("save_top_k")
    if top is not None:
        _top(done, top, monitors)
    if "every_n_epochs" not in done.put and "every_n_epochs" in values:
        _put_epochs(done, "every_n_epochs", "every", values["every_n_epochs"])
    return done


def _top(done: Translation, value: cst.BaseExpression, monitors: bool) -> None:
    name, given = "save_top_k", literal(value)
    if given == -1:
        done.entries[name] = rewrite("write keep=None: all are kept")
        done.put[name] = [("keep", "None")]
    elif given == 0:
        done.leave(name, "leave the callback out, and write Trainer(checkpoint=False)")
    elif not monitors:
        done.entries[name] = rewrite("it is called keep here: the newest so many")
        done.put[name] = [("keep", None)]
    else:
        done.entries[name] = rewrite("write keep_best=, and keep=1 for the newest beside them")
        done.put[name] = [("keep", "1")] if given == 1 else [("keep", "1"), ("keep_best", None)]


def early_stopping(values: Values) -> Translation:
    """The arguments of ``EarlyStopping``, whose mode is "min" unless given; here it follows the name."""
    done = Translation()
    _monitor(done, values)
    if "mode" not in values:
        done.extra.append(("mode", '"min"'))
    return done


_MODES = {"max_size_cycle": "cycle", "max_size": "max", "min_size": "min"}


def combined_loader(values: Values) -> Translation:
    """The arguments of ``CombinedLoader``, whose mode is "min_size" unless given."""
    done, how = Translation(), values.get("mode")
    if how is None:
        done.extra.append(("mode", '"min"'))
    elif literal(how) in _MODES:
        new = _MODES[literal(how)]
        done.entries["mode"] = rewrite(f'write mode="{new}"')
        done.put["mode"] = [("mode", f'"{new}"')]
    else:
        done.leave("mode", 'write mode="min", "max" or "cycle"')
    return done


_REDUCTIONS = ("mean", "sum", "min", "max")


def log(values: Values) -> Translation:
    """The arguments of ``self.log`` and ``self.log_dict``."""
    done = Translation()
    how = values.get("reduce_fx")
    if how is not None:
        given = literal(how)
        name = given if isinstance(given, str) else dotted(how).removeprefix("torch.")
        if name in _REDUCTIONS:
            done.put["reduce_fx"] = [] if name == "mean" else [("reduce", f'"{name}"')]
        else:
            done.leave("reduce_fx", "write reduce='mean', 'sum', 'min' or 'max'")
    return done


def _weights(name: str) -> Callable[[Values], Translation]:
    def translate(values: Values) -> Translation:
        done = Translation()
        if literal(values.get("ckpt_path")) == "last":
            done.put["ckpt_path"] = [(name, '"latest"')]
        return done

    return translate


CALLS: dict[tuple[str, str], Callable[[Values], Translation]] = {
    ("Trainer", ""): trainer,
    ("ModelCheckpoint", ""): checkpoint,
    ("EarlyStopping", ""): early_stopping,
    ("CombinedLoader", ""): combined_loader,
    ("LightningModule", "log"): log,
    ("LightningModule", "log_dict"): log,
    ("Trainer", "fit"): _weights("resume"),
    ("Trainer", "validate"): _weights("weights"),
    ("Trainer", "test"): _weights("weights"),
    ("Trainer", "predict"): _weights("weights"),
}
"""By class and method; "" for the constructor."""

_LOG = "name value prog_bar logger on_step on_epoch reduce_fx enable_graph sync_dist"
_EVALUATION = "model dataloaders ckpt_path verbose datamodule weights_only"
POSITIONS: dict[tuple[str, str], tuple[int, str]] = {
    ("LightningModule", "log"): (2, _LOG),
    ("LightningModule", "log_dict"): (1, _LOG.removeprefix("name ")),
    ("LightningModule", "load_from_checkpoint"): (1, "checkpoint_path map_location hparams_file strict"),
    ("LightningModule", "all_gather"): (1, "data group sync_grads"),
    ("Trainer", "fit"): (4, "model train_dataloaders val_dataloaders datamodule ckpt_path"),
    ("Trainer", "validate"): (2, _EVALUATION),
    ("Trainer", "test"): (2, _EVALUATION),
    ("Trainer", "predict"): (2, "model dataloaders datamodule return_predictions ckpt_path"),
}
"""How many arguments by position mean the same here, and what all of them are called there."""
