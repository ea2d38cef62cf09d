"""Try the names of names.csv under Lightning and under ours: ``python try_names.py [--check]``.

A process for each library reads attributes before, in and after a small fit, overrides what programs
override, imports the names, and gives arguments the values of programs (column ``given``). The worst of
what a name's reads gave is its ``answer``; ``--check`` fails where the table has another:

    same     the same value, as many calls, an argument that is taken
    object   an object of another class, which stands for Lightning's
    other    another value
    message  an error that says what to use
    missing  any other error
    untried  Lightning's own failed, or was not called
"""

from __future__ import annotations

import ast
import csv
import importlib
import inspect
import json
import math
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from small_run import classes, counting

TABLE = Path(__file__).resolve().with_name("names.csv")
LIBRARIES = ("lightning", "paceline.compat.lightning")
ANSWERS = ("missing", "message", "other", "object", "same", "untried")  # from the worst
# Called or not is what counts of these: each library has its times of writing a checkpoint.
ONCE = {"state_dict", "load_state_dict", "state_key", "on_save_checkpoint", "on_load_checkpoint"}
QUIET = {"accelerator": "cpu", "devices": 1, "logger": False} | dict.fromkeys(
    ("enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
)
NEEDED: dict[str, dict[str, Any]] = {
    "EarlyStopping": {"monitor": "val_loss"},
    "TensorBoardLogger": {"save_dir": "logs"},
    "CSVLogger": {"save_dir": "logs"},
    "StochasticWeightAveraging": {"swa_lrs": 0.1},
    "WandbLogger": {"offline": True},
    "CombinedLoader": {"iterables": [[1]]},
    "Trainer": QUIET,
}
Found = dict[str, Any]  # {"value": ...}, or {"error": its class, "message": its text}
NOTHING: Found = {"error": "", "message": "not called"}


def described(value, depth=0):
    """A value as JSON that compares between libraries; of an object its class."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | Path | torch.device | torch.dtype):
        return str(value).replace(os.getcwd(), "<folder>")
    if isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1):
        return round(float(value), 5) if math.isfinite(value) else str(float(value))
    if depth < 3 and isinstance(value, dict):
        return {str(key): described(one, depth + 1) for key, one in value.items()}
    if depth < 3 and isinstance(value, list | tuple):
        return [described(one, depth + 1) for one in value]
    is_function = callable(value) and not isinstance(value, torch.nn.Module)
    return {"<object>": "callable" if is_function else type(value).__name__}


def attempt(read, *args, **options) -> Found:
    """What a call gives, or how it fails."""
    try:
        return {"value": described(read(*args, **options))}
    except (Exception, SystemExit) as error:
        return {"error": type(error).__name__, "message": " ".join(str(error).split())}


def rows():
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


class Trial:
    """One library under trial: ``found`` has for each kind and name what each of its reads gave."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.pl = importlib.import_module(f"{root}.pytorch")
        self.names, self.found = defaultdict(list), defaultdict(dict)
        for row in rows():
            self.names[row["kind"]].append(row["name"])
        self.given = {row["name"]: ast.literal_eval(f"[{row['given']}]") for row in rows()}
        self.Net, self.Data = classes(self.pl)

    def trainer(self, **options):
        return self.pl.Trainer(**QUIET | {"max_epochs": 1, "log_every_n_steps": 1} | options)

    def read(self, kind, owner, phase):
        for name in self.names[kind]:
            if not name.startswith("def ") or kind == "cli":
                self.found[f"{kind} {name}"][phase] = attempt(attrgetter(name.removeprefix("def ")), owner)

    def attributes(self):
        """Those of the objects of a fit, before, in and after it, and of a command line."""

        def read(phase, trainer, module):
            owners = {"trainer": trainer, "module": module, "datamodule": data, "callback": reader}
            for kind, owner in (owners | {"logger": logger}).items():
                self.read(kind, owner, phase)

        class Reader(self.pl.Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                if batch_idx == 1 and trainer.current_epoch == 1:
                    read("training", trainer, pl_module)

            def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                if batch_idx == 1 and trainer.current_epoch == 1 and not trainer.sanity_checking:
                    read("validation", trainer, pl_module)

        self.pl.seed_everything(1)
        module, data, reader = self.Net(), self.Data(), Reader()
        logger, callbacks = self.pl.loggers.TensorBoardLogger("logs"), self.pl.callbacks
        given = [callbacks.ModelCheckpoint(monitor="val_loss"), callbacks.EarlyStopping("val_loss"), reader]
        options = {"max_epochs": 2, "enable_checkpointing": True, "num_sanity_val_steps": 1}
        trainer = self.trainer(logger=logger, callbacks=given, **options)
        read("before", trainer, module)
        trainer.fit(module, datamodule=data)
        read("after", trainer, module)
        for one in ("CSVLogger", "WandbLogger", "MLFlowLogger"):
            self.read("logger", getattr(self.pl.loggers, one), one)
        made = importlib.import_module(f"{self.root}.pytorch.cli").LightningCLI
        options = {"run": False, "args": [], "trainer_defaults": {"logger": False, "accelerator": "cpu"}}
        self.read("cli", made(self.Net, self.Data, **options), "made")

    def overrides(self):
        """How often each overridden method is called in fits, evaluations and a prediction."""
        runs = (("module", self.Net), ("callback", self.pl.Callback), ("datamodule", self.Data))
        for kind, base in runs:
            names, calls = [name[4:] for name in self.names[kind] if name.startswith("def ")], Counter()
            made = counting(base, names, calls, self.Data().loader)
            module = made() if kind == "module" else self.Net()
            data = None if kind == "module" else made() if kind == "datamodule" else self.Data()
            self.exercise(module, data, [made()] if kind == "callback" else [])
            for name in names:
                number = bool(calls[name]) if name in ONCE else calls[name]
                self.found[f"{kind} def {name}"]["run"] = {"value": number} if number else NOTHING

    def exercise(self, module, data, callbacks):
        options = {"callbacks": callbacks, "enable_checkpointing": True}
        trainer = self.trainer(**options)
        trainer.fit(module, datamodule=data)
        path = trainer.checkpoint_callback.best_model_path
        again = self.trainer(max_epochs=2, num_sanity_val_steps=0, **options)
        again.fit(module, datamodule=data, ckpt_path=path)
        again.validate(module, datamodule=data, verbose=False)
        again.test(module, datamodule=data, verbose=False)
        again.predict(module, datamodule=data)
        type(module).load_from_checkpoint(path)

        def fail():
            raise KeyError

        module.on_train_epoch_start = fail  # for on_exception
        attempt(self.trainer(**options).fit, module, datamodule=data)

    def imported(self, name):
        name = name.replace("lightning", self.root, 1)
        parent, _, last = name.rpartition(".")
        if last == "*" or name == self.root:
            return importlib.import_module(parent if last == "*" else name)
        try:
            module = importlib.import_module(parent)
            found = getattr(module, last) if hasattr(module, last) else importlib.import_module(name)
        except ImportError as error:
            try:  # an alias reaches what is no module, such as pl.__version__.split
                found = pkgutil.resolve_name(name)
            except (AttributeError, ImportError):
                raise error from None
        return found() if type(found).__name__ == "_Refused" else found  # a call says what to use

    def imports(self):
        for name in self.names["import"]:
            self.found[f"import {name}"]["import"] = attempt(lambda n=name: self.imported(n) and True)

    def arguments(self):
        """Whether each is taken: by a class with the values of programs, else by the signature."""
        logged = self.logged()
        places = {"PyTorchProfiler": "lightning.pytorch.profilers.PyTorchProfiler"}
        for name in self.names["import"]:  # the commonest first
            places.setdefault(name.rpartition(".")[2], name)
        for name in self.names["argument"]:
            called, keyword = name[:-1].rsplit("(", 1)
            first, _, rest = called.partition(".")
            reads = self.found[f"argument {name}"] = logged.get(name, {})
            found = attempt(self.imported, places[first])
            if "error" in found:
                reads["import"] = found
                continue
            owner = self.imported(places[first])
            reads["signature"] = attempt(takes, attrgetter(rest)(owner) if rest else owner, keyword)
            if inspect.isclass(owner) and not rest and not called.endswith(("Strategy", "CLI")):
                for value in self.given[name] or [1]:
                    options = NEEDED.get(called, {}) | {keyword: value}
                    reads[repr(value)] = attempt(lambda one=owner, o=options: bool(one(**o)) or True)

    def logged(self):
        """What ``self.log`` and ``self.log_dict`` gave with each argument."""
        found = defaultdict(dict)
        names = [name for name in self.names["argument"] if name.startswith("LightningModule.log")]
        given = {name: self.given[name] for name in names}

        class Logs(self.Net):
            def training_step(self, batch, batch_idx):
                loss = self(batch).pow(2).mean()
                for name, values in given.items() if batch_idx == 0 else ():
                    method, keyword = name[:-1].partition(".")[2].split("(")
                    for value in values:
                        what = [f"{name} {value}", loss] if method == "log" else [{f"{name} {value}": loss}]
                        found[name][repr(value)] = attempt(getattr(self, method), *what, **{keyword: value})
                return loss

        self.trainer().fit(Logs(), datamodule=self.Data())
        return found


def takes(called, keyword):
    parameters = inspect.signature(called).parameters
    if keyword in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return True
    raise TypeError(f"no argument {keyword}")


def trial(root):
    """Everything for one library, from a process in a folder for it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-X", "faulthandler", str(Path(__file__).resolve()), "--trial", root]
        variables = os.environ | {
            "CUDA_VISIBLE_DEVICES": "",
            "WANDB_MODE": "offline",
            "OMP_NUM_THREADS": "1",
        }
        options = {"cwd": folder, "env": variables, "timeout": 300, "capture_output": True, "text": True}
        done = subprocess.run(command, **options)
        if done.returncode:
            sys.exit(f"{root} ended with {done.returncode}: {done.stderr[-4000:]}")
        return json.loads(Path(folder, "found.json").read_text())


def compared(their: Found, our: Found) -> str:
    """The answer of one read."""
    if "error" in their:
        return "untried"
    if "error" in our:
        is_way = our["error"] == "PacelineError" or re.search(r"\buse\b|fix:|instead", our["message"])
        return "message" if is_way else "missing"
    if their["value"] == our["value"]:
        return "same"
    both = (their["value"], our["value"])
    return "object" if all(isinstance(one, dict) and "<object>" in one for one in both) else "other"


def answer(theirs: dict[str, Found], ours: dict[str, Found]) -> str:
    """The worst answer of a name's reads."""
    absent = next((one for one in ours.values() if "error" in one), NOTHING)
    found = [compared(their, ours.get(at, absent)) for at, their in theirs.items()]
    return min(found, key=ANSWERS.index, default="untried")


def main() -> None:
    if sys.argv[1:2] == ["--trial"]:
        warnings.simplefilter("ignore")
        run = Trial(sys.argv[2])
        for part in (run.attributes, run.overrides, run.imports, run.arguments):
            part()
        Path("found.json").write_text(json.dumps(run.found))
        return
    theirs, ours = map(trial, LIBRARIES)
    table, changed = rows(), []
    for row in table:
        key = f"{row['kind']} {row['name']}"
        found = answer(theirs[key], ours.get(key, {}))
        if found != row["answer"]:
            changed.append(f"{key}: {found}; the table has {row['answer']}")
        row["answer"] = found
    print("\n".join(changed))
    if "--check" in sys.argv:
        sys.exit(bool(changed))
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
