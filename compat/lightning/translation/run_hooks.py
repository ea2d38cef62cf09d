"""Two callbacks of our loop that call Lightning's hooks, in Lightning's order.

Two, because values that ``on_validation_epoch_end`` logs are published before ``on_validation_end``.
"""

from __future__ import annotations

from typing import Any

from .... import PacelineError
from ....callbacks import Callback
from .data import note_generators
from .saved import Loaded, note_module
from .session import Session

_STAGES = {"fit": "validation", "validate": "validation", "test": "test", "predict": "predict"}


class OpeningHooks(Callback):
    """First in the list of callbacks: what Lightning calls before a validation's values are whole."""

    name = "lightning"

    session: Session

    def __init__(self, requests_validation: bool) -> None:
        self.requests_validation = requests_validation
        self._loaded: dict[str, Any] = {}
        self._states: dict[str, Any] = {}
        self._started = self._stepped_epoch = False

    def attach(self, session: Session) -> None:
        """Call the hooks of this module from here on."""
        self.session = session
        self._clips = session.clips_itself
        vars(self).pop("on_before_optimizer_step", None)
        if not (session.hooks.has("on_before_optimizer_step") or self._clips):
            vars(self)["on_before_optimizer_step"] = None  # gradients are not unscaled to be shown

    # -- around a stage ------------------------------------------------------------------------

    def on_setup(self, trainer: Any, stage: str) -> None:
        hooks, session = self.session.hooks, self.session
        session.values.clear()
        session.evaluated_batches.clear()
        session.has_failed = False
        for logger in session.trainer.loggers:
            logger.begin(trainer)
        called = session.trainer.state.fn  # hooks may ask for called.value
        hooks.of_callbacks("setup", called)
        hooks.of_module("setup", called)
        hooks.of_module("configure_model")
        if stage != "fit":
            self._log_hyperparams(trainer)
        session.stage_name = "train" if stage == "fit" else _STAGES[stage]
        if stage != "fit" and session.loads is not None and hooks.has("on_load_checkpoint"):
            hooks.of_module("on_load_checkpoint", session.loads.content())
        if stage == "fit":
            session.partial_epoch = False
            note_generators(session.trainer)
            session.continue_there()
            self._started = False

    def _log_hyperparams(self, trainer: Any) -> None:
        """Give them to the loggers, in a stage that has no run folder."""
        hparams = self.session.logged_hparams
        if hparams is not None and trainer.is_global_zero:
            for logger in self.session.trainer.loggers:
                logger.log_hyperparams(hparams)

    def on_fit_start(self, trainer: Any) -> None:
        session = self.session
        for line in session.lines_of_settings():
            session.log_line(line)
        session.say()
        if trainer.folder is not None:
            note_module(trainer.folder, session.module)
        if trainer.folder is not None and trainer.is_global_zero:
            for logger in session.trainer.loggers:
                logger.link(trainer, session.logged_hparams or {})
        if trainer.world_size == 1:
            session.adapter.unfreeze_others()
        session.hooks.call("on_fit_start")
        if trainer.global_step and not trainer.counters.samples_in_epoch:
            trainer.loop.request_validation()  # a sanity check; within an epoch there is none

    def on_fit_end(self, trainer: Any) -> None:
        hooks = self.session.hooks
        if self._started and trainer.counters.samples_in_epoch and not trainer.interrupted:
            hooks.call("on_train_epoch_end")  # of the part that was trained on
            self.session.partial_epoch = True
        if self._started:
            hooks.call("on_train_end")
        hooks.call("on_fit_end")

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        self.session.has_failed = True
        if self.session.datamodule is not None:
            self.session.datamodule.on_exception(error)
        self.session.hooks.of_callbacks("on_exception", error)

    def on_teardown(self, trainer: Any, stage: str) -> None:
        session = self.session
        session.end_evaluation()
        session.has_updated = False
        if not session.has_failed:  # Lightning calls on_exception in its place
            called = session.trainer.state.fn
            if session.datamodule is not None:
                session.datamodule.teardown(called)
            session.hooks.of_callbacks("teardown", called)
            session.hooks.of_module("teardown", called)
        session.adapter.unfreeze_others()
        session.trainer.profiler.describe(session.trainer, stage)
        if session.trainer.checkpoint_io is not None:
            session.trainer.checkpoint_io.teardown()

    # -- training ------------------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any) -> None:
        session = self.session
        if not self._started:
            self._started = True
            session.values.place = "on_train_start"
            session.hooks.call("on_train_start")
        if not trainer.counters.samples_in_epoch:
            session.values.place = "on_train_epoch_start"
            session.hooks.call("on_train_epoch_start")
        session.values.place = ""
        self._stepped_epoch = False

    def on_step_start(self, trainer: Any, batches: list[Any]) -> None:
        self.session.adapter.begin_step(batches)

    def on_before_optimizer_step(self, trainer: Any, optimizer: Any) -> None:
        session = self.session
        session.hooks.call("on_before_optimizer_step", optimizer)
        if self._clips and not session.is_manual:
            given = session.trainer.gradient_clip_val, session.trainer.gradient_clip_algorithm
            session.module.configure_gradient_clipping(
                optimizer, gradient_clip_val=given[0], gradient_clip_algorithm=given[1]
            )

    def on_step_end(self, trainer: Any, outputs: list[Any]) -> None:
        session = self.session
        adapter, is_last = session.adapter, session.is_last_batch
        session.has_updated = False
        adapter.kept_gradients.show()
        session.is_ending_step = True
        adapter.finish_batch()
        session.is_ending_step = False
        self._stepped_epoch = self._stepped_epoch or is_last
        if adapter.ends:
            self._stepped_epoch = self._stepped_epoch or session.ends_early
            return
        if session.rule is not None:
            batch, epoch, in_epoch = session.batch_idx, session.current_epoch, session.batches_per_epoch
            total, size = session.batches_before + batch, session.accumulate
            if session.rule.due(batch, total, epoch, is_last, in_epoch, size):
                trainer.loop.request_validation()
        if session.ends_early and trainer.world_size == 1:  # Lightning validates once more
            trainer.loop.request_validation()
        if session.is_manual:
            most = session.trainer.max_steps
            if most > 0 and session.global_step >= most:
                trainer.stop(f"max_steps={most} reached")

    def on_train_epoch_end(self, trainer: Any) -> None:
        session = self.session
        session.values.epoch_ended()
        session.batches_before += session.batch_idx
        if not self._stepped_epoch and not session.is_manual:
            for config in session.adapter.configs:  # how long the epoch is shows only now
                if not config.reduce_on_plateau and config.due("epoch", session.current_epoch + 1):
                    session.module.lr_scheduler_step(config.scheduler, None)
        session.values.place = "on_train_epoch_end"
        session.hooks.call("on_train_epoch_end")
        session.values.place = ""

    # -- evaluations ---------------------------------------------------------------------------

    def _begin(self, trainer: Any, stage: str) -> None:
        session = self.session
        hooks = session.hooks
        in_fit = trainer.stage == "fit"
        session.sanity_checking = in_fit and not trainer.loop.is_fit_validation
        if session.sanity_checking:
            hooks.of_callbacks("on_sanity_check_start")
        elif in_fit:
            hooks.of_module("on_validation_model_zero_grad")
        session.begin_evaluation(stage)
        hooks.of_module(f"on_{stage}_model_eval")
        hooks.call(f"on_{stage}_start")
        hooks.call(f"on_{stage}_epoch_start")

    def on_validation_start(self, trainer: Any) -> None:
        self._begin(trainer, "validation")

    def on_test_start(self, trainer: Any) -> None:
        self._begin(trainer, "test")

    def on_predict_start(self, trainer: Any) -> None:
        self._begin(trainer, "predict")

    def on_validation_end(self, trainer: Any) -> None:
        self._end_epoch("validation")

    def on_test_end(self, trainer: Any) -> None:
        self._end_epoch("test")

    def on_predict_end(self, trainer: Any) -> None:
        self._end_epoch("predict")

    def _end_epoch(self, stage: str) -> None:
        session = self.session
        session.values.place = f"on_{stage}_epoch_end"
        session.hooks.call(session.values.place)
        session.values.place = ""

    # -- checkpoints ---------------------------------------------------------------------------

    def on_save_checkpoint(self, trainer: Any, state: dict[str, Any]) -> None:
        session = self.session
        self._states = {one.state_key: one.state_dict() for one in session.callbacks}
        if session.datamodule is not None:
            session.data.capture()
        session.content = None
        state["lightning"] = session.content_at(trainer, self._states).added

    def on_load_checkpoint(self, trainer: Any, state: dict[str, Any]) -> None:
        session = self.session
        added = state.get("lightning", {})
        if session.resumes is not None and session.trainer.checkpoint_io is not None:
            added = {**session.resumes.file, **added}
        if session.hooks.has("on_load_checkpoint"):
            added = (session.resumes or Loaded(None)).resumed(added, session.module)
        session.hooks.of_callbacks("on_load_checkpoint", added)
        self._give_back()
        session.hooks.of_module("on_load_checkpoint", added)

    def state_dict(self) -> dict[str, Any]:
        session = self.session
        counts = {
            "manual_steps": session.manual_steps,
            "cancelled": session.cancelled,
            "batches_before": session.batches_before,
        }
        return counts | {"callbacks": {key: state for key, state in self._states.items() if state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        session = self.session
        session.manual_steps = state["manual_steps"]
        session.cancel(state["cancelled"])
        session.batches_before = state.get("batches_before", 0)
        self._loaded = state["callbacks"]

    def _give_back(self) -> None:
        """The callbacks' states; Lightning does so after their ``on_load_checkpoint``."""
        for callback in self.session.callbacks:
            if callback.state_key in self._loaded:
                callback.load_state_dict(self._loaded[callback.state_key])


class ClosingHooks(Callback):
    """Second: what Lightning calls when all values of an epoch or a validation are known."""

    name = "lightning-end"
    session: Session

    def _end(self, stage: str) -> None:
        session = self.session
        session.publish_whole()
        session.values.settle(training=False)
        session.values.evaluated()
        session.hooks.call(f"on_{stage}_end")
        session.hooks.of_module(f"on_{stage}_model_train")
        if session.sanity_checking:
            session.hooks.of_callbacks("on_sanity_check_end")
            session.values.clear()
        session.sanity_checking = False
        session.end_evaluation()

    def on_validation_end(self, trainer: Any) -> None:
        self._end("validation")

    def on_test_end(self, trainer: Any) -> None:
        self._end("test")

    def on_predict_end(self, trainer: Any) -> None:
        self._end("predict")

    def on_train_epoch_end(self, trainer: Any) -> None:
        self.session.publish_whole()
        self.session.values.settle(training=True)
        self.session.hooks.of_monitors("on_train_epoch_end")
        self._step_plateau("epoch", self.session.current_epoch + 1)

    def on_step_boundary(self, trainer: Any) -> None:
        session = self.session
        if any(c.reduce_on_plateau and c.interval == "step" for c in session.adapter.configs):
            self._step_plateau("step", session.batch_idx or (session.batches_per_epoch or 0))

    def _step_plateau(self, interval: str, count: int) -> None:
        session = self.session
        if session.is_manual:
            return
        for config in session.adapter.configs:
            if not config.reduce_on_plateau or not config.due(interval, count):
                continue
            metrics = session.values.callback()
            if config.monitor in metrics:
                session.module.lr_scheduler_step(config.scheduler, metrics[config.monitor])
            elif config.strict:
                raise PacelineError(
                    f"ReduceLROnPlateau watches {config.monitor!r}, which was not logged",
                    code="metric-not-logged",
                    got=f"logged: {', '.join(metrics) or 'nothing'}",
                    fix='"strict": False steps it only when there is a value',
                )
