"""A callback that asks a run to stop, for tests that resume it."""

from paceline.callbacks import Callback


class StopsAt(Callback):
    """Asks for the stop at the end of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer, outputs):
        if trainer.global_step == self.step:
            trainer.stop("enough")
