"""The methods of a ``TrainModule`` that its author writes: its steps, its optimizers, its schedules."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from ...strategies.layers.transformers_plan import parallelize_models


class UserMethods:
    """What a subclass of ``TrainModule`` overrides, besides hooks.

    Typed so that an override with fewer arguments, or others' names, is no error to a type checker.
    """

    def configure_model(self) -> None:
        """Build what is too large to be built in ``__init__`` on one device; called once, before a run.

        It runs under ``torch.device("meta")``: nothing is allocated. Each part then gets its values from
        its own ``reset_parameters()``, sharded as it is made where the strategy shards.

        Example:
            >>> class Large(Net):
            ...     def configure_model(self):
            ...         self.layer = nn.Linear(2, 1)
            >>> run = trainer.fit(Large(), train_loader)
        """

    def parallelize(self, mesh: Any) -> None:
        """Split layers over ranks, for a strategy with ``tensor=...``; before the optimizers are built.

        Parameters have no values here: what is split is their shapes. Inputs and outputs of the layers
        are as torch's styles have them. Unless it is written, Hugging Face models are split by their own
        ``tp_plan``.

        Args:
            mesh: The 1-D ``DeviceMesh`` of the ranks that split each layer.

        Raises:
            PacelineError: where it is not written, and no Hugging Face model has a plan that torch's
                styles can follow.

        Example:
            >>> from torch.distributed.tensor.parallel import (
            ...     ColwiseParallel, RowwiseParallel, parallelize_module)
            >>> class Split(Net):
            ...     def __init__(self):
            ...         super().__init__()
            ...         self.mlp = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
            ...     def parallelize(self, mesh):
            ...         plan = {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
            ...         parallelize_module(self, mesh, plan)
            >>> module = Split()  # to be trained on several devices, by a strategy with tensor=2
        """
        parallelize_models(cast(nn.Module, self), mesh)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, batch_idx)``: the loss of one micro-batch.

        A Tensor, or a mapping with ``loss`` and values to log.
        With ``"weight"`` in the mapping (tokens, say; the loss is a mean over it), the step's gradient is
        the weighted mean over all its micro-batches. ``batch_idx`` is optional.

        Example:
            >>> class Weighted(Net):
            ...     def training_step(self, batch, batch_idx):
            ...         weight = batch[1].abs()
            ...         loss = ((self.layer(batch[0]) - batch[1]) ** 2 * weight).sum() / weight.sum()
            ...         return {"loss": loss, "weight": weight.sum()}
            >>> run = trainer.fit(Weighted(), train_loader)
        """
        raise NotImplementedError

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, batch_idx)``: log values, or return them.

        A Tensor is the ``loss``, a mapping holds values by name.

        Example:
            >>> class Checked(Net):
            ...     def validation_step(self, batch):
            ...         return {"error": (self.layer(batch[0]) - batch[1]).abs().mean()}
            >>> sorted(trainer.validate(Checked(), val_loader))
            ['val/error']
        """
        raise NotImplementedError

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """As ``validation_step``, for ``Trainer.test``.

        Example:
            >>> class Tested(Net):
            ...     def test_step(self, batch):
            ...         self.log("error", (self.layer(batch[0]) - batch[1]).abs().mean())
            >>> sorted(trainer.test(Tested(), val_loader))
            ['test/error']
        """
        raise NotImplementedError

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """``(self, batch, batch_idx)``: what ``Trainer.predict`` is to give for this batch.

        Example:
            >>> class Signs(Net):
            ...     def predict_step(self, batch):
            ...         return self.layer(batch[0]).sign()
            >>> trainer.predict(Signs(), val_loader)[0].shape
            torch.Size([4, 1])
        """
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        """An optimizer, or optimizers and schedulers in one of the documented shapes.

        ``self.trainer.total_steps`` is known here.

        Example:
            >>> class Annealed(Net):
            ...     def configure_optimizers(self):
            ...         adam = torch.optim.AdamW(self.parameters(), lr=0.01)
            ...         rate = torch.optim.lr_scheduler.CosineAnnealingLR(adam, self.trainer.total_steps)
            ...         return {"optimizer": adam, "lr_scheduler": {"scheduler": rate, "interval": "step"}}
            >>> run = trainer.fit(Annealed(), train_loader)
        """
        raise NotImplementedError

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """``(self, loss)``: compute the gradients of one micro-batch, under automatic optimization.

        Override it to go backward from something else as well; call ``super().backward(loss)``, which
        scales the loss and reduces gradients as the run does, or with ``retain_graph=True``. ``loss`` is
        the micro-batch's share of the step. Strategies that shard parameters take one call.

        Example:
            >>> class Twice(Net):
            ...     def backward(self, loss):
            ...         super().backward(2 * loss)
            >>> run = trainer.fit(Twice(), train_loader)
        """
        trainer: Any = self.trainer  # type: ignore[attr-defined]
        trainer.strategy.backward(*args, **kwargs)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """``(self, optimizer, closure)``: one update, under automatic optimization.

        ``closure()`` computes what is left of the step's gradients: its last micro-batch, then hooks and
        clipping. The default is ``optimizer.step(closure)``; a step whose gradients are not finite updates
        nothing. Schedules step afterwards. Override it for what surrounds an update, such as a learning
        rate that you set yourself.

        Example:
            >>> class Warm(Net):
            ...     def optimizer_step(self, optimizer, closure):
            ...         optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, (self.global_step + 1) / 3)
            ...         optimizer.step(closure)
            >>> run = trainer.fit(Warm(), train_loader)
        """
        given = dict(zip(("optimizer", "closure"), args, strict=False)) | kwargs
        given["optimizer"].step(given["closure"])

    def lr_scheduler_step(self, *args: Any, **kwargs: Any) -> None:
        """``(self, scheduler, metric)``: step a scheduler of ``configure_optimizers`` when it is its turn.

        ``metric`` is the latest value that it monitors; None where it monitors none. Override it for a
        scheduler whose ``step`` takes other arguments.

        Example:
            >>> class ByEpoch(Net):
            ...     def configure_optimizers(self):
            ...         sgd = torch.optim.SGD(self.parameters(), lr=0.1)
            ...         return sgd, torch.optim.lr_scheduler.StepLR(sgd, step_size=1)
            ...     def lr_scheduler_step(self, scheduler, metric):
            ...         if self.epoch >= 2:  # the first two epochs keep their rate
            ...             super().lr_scheduler_step(scheduler, metric)
            >>> run = trainer.fit(ByEpoch(), train_loader)
        """
        given = dict(zip(("scheduler", "metric"), args, strict=False)) | kwargs
        metric = given.get("metric")
        given["scheduler"].step(*(() if metric is None else (metric,)))
