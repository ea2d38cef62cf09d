"""Strategies that the doctor is to find something wrong with."""

import faulthandler
import os
import signal
import subprocess
import sys
import time

from paceline.strategies import DDP, Distributed, GroupCollectives, Weights
from paceline.trainer.data import map_feed

MARK = "a-process-that-a-sick-strategy-has-started"


class WrongSum(DDP):
    """One rank gets another sum."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.collectives = OffByOne(environment)


class OffByOne(GroupCollectives):
    def all_reduce(self, values, op="sum"):
        found = super().all_reduce(values, op)
        return (
            found + 1
            if self.environment.rank == 1 and values.numel() == 2 and values.is_floating_point()
            else found
        )


class OtherStep(Distributed):
    """Each rank keeps its own gradients."""


class LosesTensor(DDP):
    """A checkpoint has no bias of the first layer."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.weights = WithoutBias(self.collectives)


class WithoutBias(Weights):
    def module_tensors(self, module):
        return {name: t for name, t in super().module_tensors(module).items() if name != "first.bias"}


class Rounds(DDP):
    """What was read is rounded."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.weights = Rounded(self.collectives)


class Rounded(Weights):
    def load_module(self, module, values):
        super().load_module(module, {name: value.bfloat16().float() for name, value in values.items()})


class OtherOrder(DDP):
    """Rank 1 has another seed for the order of its samples."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        if environment.rank == 1:
            map_feed.order_seed = lambda seed, epoch: 12345


class Hangs(DDP):
    """The last rank starts a process and waits for ever, in its first backward; its time is up soon."""

    def backward(self, loss):
        if self.environment.rank == 1:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", MARK])
            faulthandler.dump_traceback_later(1, exit=True)  # in the place of a timer of a minute
            time.sleep(600)
        super().backward(loss)


class IsKilled(DDP):
    """The last rank is killed, as the kernel does where memory runs out."""

    def backward(self, loss):
        if self.environment.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().backward(loss)
