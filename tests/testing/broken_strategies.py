"""Strategies that each break one promise, for the check of strategies to find."""

import subprocess
import sys
import time
from contextlib import contextmanager

import torch

from paceline import PacelineError
from paceline.strategies import DDP, Distributed, GroupCollectives, Weights

MARK = "a-process-that-a-strategy-has-started"


class NoAverage(Distributed):
    """Each rank keeps its own gradients."""

    name = "no-average"


class WrongWhole(DDP):
    """What an export writes has lost a part."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.weights = Cut(self.collectives)


class Cut(Weights):
    def full_tensors(self, module):
        return {name: value[:1] for name, value in super().full_tensors(module).items()}


class Average(Distributed):
    """A right one that is easy to break."""

    name = "average"
    last = True

    def setup(self, module, build_optimizers):
        self.prepare_module(module)
        self.trained = [p for p in module.parameters() if p.requires_grad]
        return build_optimizers()

    def synchronise_gradients(self, enabled):
        self.last = enabled

    def backward(self, loss):
        super().backward(loss)
        if self.last:
            self.average_gradients(self.trained)


class OwnSamples(DDP):
    """Takes its own validation samples for those of the other ranks."""

    @contextmanager
    def evaluation(self, module):
        with super().evaluation(module):
            self.collectives.all_gather = lambda value: [value] * self.environment.world_size
            yield
            del self.collectives.all_gather


class LastMicroBatch(Average):
    """Forgets the gradients of all but the last micro-batch."""

    def backward(self, loss):
        for parameter in self.trained:
            parameter.grad = None
        super().backward(loss)


class NoClipping(DDP):
    """Takes no notice of the limits."""

    def clip(self, optimizer, norm, value):
        pass


class WrongOrder(DDP):
    """Gathers objects in the wrong order."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.collectives = Backwards(environment)


class Backwards(GroupCollectives):
    def all_gather(self, value):
        found = super().all_gather(value)
        return found if isinstance(value, torch.Tensor) else found[::-1]


class WrongBroadcast(DDP):
    """Always from rank 0."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.collectives = FromZero(environment)


class FromZero(GroupCollectives):
    def broadcast(self, value, source=0):
        return super().broadcast(value, 0)


class LosesMoments(DDP):
    """A checkpoint without the optimizer's tensors is read without complaint."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.weights = WithoutMoments(self.collectives)


class WithoutMoments(Weights):
    def load_optimizer(self, module, optimizer, tensors, plain):
        super().load_optimizer(module, optimizer, {n: t * 0 for n, t in tensors.items()}, plain)


class RoundedCheckpoint(DDP):
    """Writes weights that are rounded."""

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.weights = Rounded(self.collectives)


class Rounded(Weights):
    def module_tensors(self, module):
        return {n: t.bfloat16().to(t.dtype) for n, t in super().module_tensors(module).items()}


class UnseenNaN(Average):
    """Each rank looks at its own losses and gradients only."""

    def find_nonfinite(self, optimizer, found):
        return False

    def attach(self, environment, precision):
        super().attach(environment, precision)
        self.collectives = WithoutNaN(environment)


class WithoutNaN(GroupCollectives):
    def all_reduce(self, values, op="sum"):
        return super().all_reduce(torch.nan_to_num(values), op)


class OneRankFails(DDP):
    """The last rank raises in its first backward, the other waits for it."""

    def backward(self, loss):
        if self.environment.rank == 1:
            raise ValueError("as asked")
        super().backward(loss)


class Hangs(DDP):
    """The last rank starts a process and waits for ever."""

    def setup(self, module, build_optimizers):
        if self.environment.rank == 1:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", MARK])
            time.sleep(600)
        return super().setup(module, build_optimizers)


class Refuses(Distributed):
    """Does not get as far as a run."""

    def attach(self, environment, precision):
        raise PacelineError("this device is not supported")
