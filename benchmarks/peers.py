"""The tiny MLP of ``overhead.py`` under other trainers, each as its own documentation has it.

Each function takes ready batches and returns the seconds from the first step to the end of the epoch.
``found()`` gives those installed of lightning, accelerate, transformers and pytorch-ignite.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tiny import Terminal, make_net
from torch.nn import functional as F

Loop = Callable[[list[Any]], float]


class Ready:
    """Batches as an iterable that is no list: Lightning takes that for several dataloaders."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@contextlib.contextmanager
def _quiet() -> Iterator[str]:
    """A temporary folder; nothing is printed."""
    warnings.filterwarnings("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "transformers", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(Terminal()),
        contextlib.redirect_stderr(Terminal()),
    ):
        yield folder


def _lightning(batches: list[Any], typical: bool) -> float:
    import lightning

    class Watch(lightning.Callback):
        def on_train_epoch_start(self, *_: Any) -> None:
            self.begun = time.perf_counter()

        def on_train_epoch_end(self, *_: Any) -> None:
            self.seconds = time.perf_counter() - self.begun

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            loss = F.cross_entropy(self.net(x), y)
            if typical:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    watch = Watch()
    with _quiet() as folder:
        logger: Any = False
        if typical:
            logger = lightning.pytorch.loggers.TensorBoardLogger(folder)
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=logger,
            enable_progress_bar=typical,
            enable_checkpointing=False,
            enable_model_summary=typical,
            callbacks=[watch],
            default_root_dir=folder,
        )
        trainer.fit(Module(), Ready(batches))
    return watch.seconds


def lightning_off(batches: list[Any]) -> float:
    """``lightning.Trainer``, nothing on."""
    return _lightning(batches, typical=False)


def lightning_typical(batches: list[Any]) -> float:
    """The same with a progress bar, TensorBoard and one value."""
    return _lightning(batches, typical=True)


def fabric_off(batches: list[Any]) -> float:
    """``lightning.Fabric`` around the hand-written loop."""
    import lightning

    with _quiet():
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        fabric.launch()
        net = make_net()
        net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
        begun = time.perf_counter()
        for x, y in batches:
            loss = F.cross_entropy(net(x), y)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - begun


def _accelerate(batches: list[Any], typical: bool) -> float:
    from accelerate import Accelerator
    from tqdm.auto import tqdm

    with _quiet() as folder:
        accelerator = Accelerator(
            cpu=True, log_with="tensorboard" if typical else None, project_dir=folder if typical else None
        )
        net = make_net()
        net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
        if typical:
            accelerator.init_trackers("run")
        begun = time.perf_counter()
        bar = tqdm(batches) if typical else batches
        for number, (x, y) in enumerate(bar):
            with accelerator.accumulate(net):
                loss = F.cross_entropy(net(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if typical and number % 50 == 0:
                value = loss.item()
                accelerator.log({"loss": value}, step=number)
                bar.set_postfix(loss=value)  # type: ignore[union-attr]
        seconds = time.perf_counter() - begun
        if typical:
            accelerator.end_training()
    return seconds


def accelerate_off(batches: list[Any]) -> float:
    """Accelerate around the hand-written loop, accumulation as its guide has it."""
    return _accelerate(batches, typical=False)


def accelerate_typical(batches: list[Any]) -> float:
    """The same with tqdm and TensorBoard, a value every 50 steps."""
    return _accelerate(batches, typical=True)


def transformers_off(batches: list[Any]) -> float:
    """``transformers.Trainer``, nothing on."""
    import transformers

    seconds = 0.0

    class Watch(transformers.TrainerCallback):
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.perf_counter()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            nonlocal seconds
            seconds = time.perf_counter() - self.begun

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": F.cross_entropy(self.net(x), labels)}

    class Given(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(
                [{"x": x, "labels": y} for x, y in batches], batch_size=None, shuffle=False
            )

    with _quiet() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=1,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            optim="sgd",
            learning_rate=0.01,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
        )
        Given(model=Model(), args=arguments, callbacks=[Watch()]).train()
    return seconds


def ignite_off(batches: list[Any]) -> float:
    """An ignite ``Engine`` over the hand-written step."""
    from ignite.engine import Engine, Events

    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def update(engine: Any, batch: Any) -> Any:
        x, y = batch
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    trainer = Engine(update)
    times = []
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: times.append(time.perf_counter()))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: times.append(time.perf_counter()))
    with _quiet():
        trainer.run(batches, max_epochs=1)
    return times[1] - times[0]


def found(typical: bool) -> dict[str, Loop]:
    """The loops of what is installed, by name."""
    loops: dict[str, tuple[str, Loop]] = {
        "Fabric": ("lightning", fabric_off),
        "Ignite": ("ignite", ignite_off),
        "Accelerate": ("accelerate", accelerate_off),
        "Transformers": ("transformers", transformers_off),
        "Lightning": ("lightning", lightning_off),
    }
    if typical:
        loops = {
            "Accelerate": ("accelerate", accelerate_typical),
            "Lightning": ("lightning", lightning_typical),
        }
    return {name: loop for name, (needs, loop) in loops.items() if importlib.util.find_spec(needs)}


def versions() -> dict[str, str]:
    """Of what is installed."""
    names = ("lightning", "accelerate", "transformers", "pytorch-ignite")
    found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    return {name: found[name] for name in names if name in found}
