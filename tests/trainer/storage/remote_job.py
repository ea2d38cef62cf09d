"""A training whose run is in an object store; alone, or as trials that are killed at each request.

python remote_job.py SETTINGS   (JSON: arguments of ``train``, or of ``trials`` with a key ``store``; with
``patient`` false nothing is waited for between attempts)
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline import Trainer, TrainModule
from paceline.callbacks import Checkpoint
from paceline.trainer.storage import remote

STEPS = 6


class Net(TrainModule):
    """Two layers, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def training_step(self, batch):
        loss = self.layers(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


def train(
    run_dir: str,
    resume: str | None = "auto",
    strategy: str = "single",
    devices: int = 1,
    num_nodes: int = 1,
    save: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train. The weights, the losses by step, the run's folder, and where it was resumed."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.rand(8 * STEPS, 4, generator=generator))
    module = Net()
    trainer = Trainer(
        strategy=strategy, accelerator="cpu", devices=devices, num_nodes=num_nodes, run_dir=run_dir,
        name="n", max_steps=STEPS, global_batch_size=8, log_every=1, loggers=["-tensorboard", "-curves"],
        callbacks=[Checkpoint(every=2, **{"keep": 2} | (save or {}))], progress=False, **settings,
    )  # fmt: skip
    begins: list[int] = []
    module.on_fit_start = lambda: begins.append(trainer.global_step)
    run = trainer.fit(module, DataLoader(data, 8 // devices // num_nodes, shuffle=True), resume=resume)
    whole = trainer.strategy.weights.module_tensors(module)
    weights = torch.cat(
        [t.full_tensor().flatten() if hasattr(t, "full_tensor") else t.flatten() for t in whole.values()]
    )
    rows = [(row["step"], row["train/loss"]) for row in run.rows if "train/loss" in row]
    return {"weights": weights.tolist(), "rows": rows, "run": str(run.folder), "begins": begins}


def trials(store: str, first: bool, part: int) -> list[dict[str, Any]]:
    """For each request of a training: one that is killed at it, and one that continues.

    Args:
        store: The folder of the object store.
        first: Whether the request takes effect before the training is killed.
        part: Of every four requests the one that is meant.

    Returns:
        What ``train`` returned the second time; of the last trial nothing was killed.
    """
    found = []
    while not found or found[-1]["killed"]:
        number = 4 * len(found) + part
        place = f"trial-{first:d}-{number}"

        def killed(number=number, place=place) -> None:
            plan = {"prefix": place, "kill": [os.getpid(), number], "first": first}
            Path(store, "plan").write_text(json.dumps(plan))
            os.environ["PACELINE_CACHE"] = f"{store}/{place}"
            train(f"s3://bucket/{place}")

        def resumed(number=number, place=place) -> None:
            Path(store, "plan").unlink()
            os.environ["PACELINE_CACHE"] = f"{store}/{place}{'-2' * (number // 4 % 2)}"
            done = train(f"s3://bucket/{place}")
            Path(store, place + ".json").write_text(json.dumps(done))

        was_killed = _forked(killed) == -signal.SIGKILL
        assert _forked(resumed) == 0
        done = json.loads(Path(store, place + ".json").read_text())
        found.append(done | {"killed": was_killed, "place": place})
    return found


def _forked(work) -> int:
    """The exit code of a process that does it."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def mount(folder: str, to: str) -> None:
    """From here on this process alone finds ``folder`` at the path ``to``."""
    own_mounts, recursively, privately, bound = 0x20000, 1 << 14, 1 << 18, 1 << 12
    library = ctypes.CDLL(None, use_errno=True)
    nothing, flags = None, ctypes.c_ulong
    for call, *arguments in (
        (library.unshare, own_mounts),
        (library.mount, b"none", b"/", nothing, flags(recursively | privately), nothing),
        (library.mount, folder.encode(), to.encode(), nothing, flags(bound), nothing),
    ):
        if call(*arguments):
            raise OSError(ctypes.get_errno(), "a folder cannot be mounted for a process alone", folder)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    out = given.pop("out")
    if not given.pop("patient", True):
        remote.PAUSES = (0.0, 0.0, 0.0)
    if "mounts" in given:
        mount(given.pop("mounts")[int(os.environ["RANK"])], os.environ["PACELINE_CACHE"])
    result = trials(**given) if "store" in given else train(**given)
    if os.environ.get("RANK", "0") == "0":
        Path(out).write_text(json.dumps(result))
