"""A program that forks its ranks as a notebook does, without a kernel.

python forking_job.py '{"case": "killed"}'
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

builtins.__IPYTHON__ = True

from paceline import PacelineError, Trainer, TrainModule, tools  # noqa: E402
from paceline.callbacks import Callback  # noqa: E402
from paceline.strategies.launch.forked_ranks import RankFailedError  # noqa: E402


class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def predict_step(self, batch):
        return self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


DATA = [torch.ones(2, 2) for _ in range(8)]


def trainer(**settings) -> Trainer:
    usual = {"accelerator": "cpu", "devices": 2, "progress": False, "loggers": False, "max_epochs": 1}
    return Trainer(**(usual | settings))


def note(what: str, **values) -> None:
    with Path("notes").open("a") as file:
        file.write(json.dumps({"what": what, "time": time.time()} | values) + "\n")


class Waiting(Callback):
    """The run is under way, and does not end by itself."""

    def on_step_end(self, trainer):
        if trainer.global_step == 2:
            Path(f"waits-{trainer.rank}").touch()
            time.sleep(600)


def when_both_wait(act) -> None:
    def watch():
        while not (Path("waits-0").exists() and Path("waits-1").exists()):
            time.sleep(0.02)
        act()

    threading.Thread(target=watch, daemon=True).start()


def killed() -> None:
    when_both_wait(lambda: os.kill(os.getpid(), signal.SIGKILL))
    trainer(callbacks=Waiting()).fit(Net(), DATA)


def rank_killed() -> None:
    class Pids(Waiting):
        def on_fit_start(self, trainer):
            Path(f"pid-{trainer.rank}").write_text(str(os.getpid()))

    when_both_wait(lambda: os.kill(int(Path("pid-1").read_text()), signal.SIGKILL))
    failed(lambda: trainer(callbacks=Pids()).fit(Net(), DATA))


def failed(call) -> None:
    try:
        call()
    except (RankFailedError, PacelineError) as error:
        note("failed", type=type(error).__name__, text=str(error), shown=error._render_traceback_())


def signalled(number: int, twice: bool = False) -> None:
    """This process gets a signal, perhaps twice, and notes how fit ended and what is left."""

    class Slow(Callback):
        def on_step_end(self, trainer):
            if trainer.global_step == 2:
                Path(f"waits-{trainer.rank}").touch()
                while twice:
                    time.sleep(0.1)
            time.sleep(0.05)

    def act():
        os.kill(os.getpid(), number)
        if twice:
            time.sleep(1.5)
            os.kill(os.getpid(), number)

    when_both_wait(act)
    own, module = trainer(callbacks=Slow(), max_epochs=20), Net()
    before = [signal.getsignal(n) for n in (2, 10, 15)]
    try:
        own.fit(module, DATA)
    except BaseException as error:
        latest = own.run.latest
        stored = None if latest is None else Net.load_from_checkpoint(latest).layer.weight.tolist()
        note("ended", type=type(error).__name__, code=getattr(error, "code", None), step=own.global_step)
        note("left", latest=latest and latest.name, same=stored == module.layer.weight.tolist())
    note("restored", handlers=before == [signal.getsignal(n) for n in (2, 10, 15)])


class Configured(Net):
    """Built where it is sharded; two of its weights are one."""

    def __init__(self):
        super().__init__()
        del self.layer

    def configure_model(self):
        self.layer = nn.Linear(2, 1)
        self.tied = nn.Linear(2, 1)
        self.tied.weight = self.layer.weight


class Counted(Callback):
    """Has a state, and an attribute that is none."""

    def __init__(self):
        self.steps = self.lost = 0

    def on_step_end(self, trainer):
        self.steps += 1
        self.lost += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def brought_back(strategy: str, precision: str = "32") -> None:
    counted, module = Counted(), Configured()
    own = trainer(strategy=strategy, precision=precision, callbacks=counted)
    run = own.fit(module, DATA)
    weights = [t.tolist() for t in Configured.load_from_checkpoint(own.run.latest).state_dict().values()]
    note(
        "run",
        same=weights == [t.float().tolist() for t in module.state_dict().values()],
        tied=module.tied.weight is module.layer.weight,
        dtype=str(module.layer.weight.dtype),
        kind=type(module.layer.weight).__name__,
        counted=[counted.steps, counted.lost],
        folder=run.folder == own.folder,
        module=own.module is module,
        fits=[own._run.fit_number],
    )
    second = own.fit(module, DATA)
    note("second", fit=second.environment["fit"], other=second.folder != run.folder, step=own.global_step)
    out = own.predict(None, DATA, out="outputs")
    own.export("exported")
    note("more", outputs=len(out), read=len(list(out)), exported=sorted(os.listdir("exported")))


def grown() -> None:
    """The ranks build a part that the notebook's module does not get."""

    class Grown(Net):
        def setup(self, stage):
            self.more = nn.Linear(1, 1)

        def training_step(self, batch):
            return self.more(self.layer(batch)).square().mean()

    own = trainer()
    try:
        own.fit(Grown(), DATA)
    except PacelineError as error:
        note("refused", text=str(error), notes=error.__notes__, step=own.global_step)


def printed() -> None:
    """What ranks and their children write, through Python and past it."""

    class Speaks(Net):
        def on_train_epoch_end(self, trainer):
            print(f"print on rank {trainer.rank}", end="")
            print("\nerror on rank", trainer.rank, file=sys.stderr)
            os.write(1, f"descriptor on rank {trainer.rank}\n".encode())
            os.system(f"echo child of rank {trainer.rank}")

    own = trainer()
    own.fit(Speaks(), DATA)
    note("log", text=(own.folder / "log-rank-1.txt").read_text())
    search = tools.find_learning_rate(trainer(run_dir=None), Net(), DATA, steps=5)
    note("search", rates=len(search.rates))


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    globals()[options.pop("case")](**options)
