"""Mistakes people make, and the messages: what, where, got, allowed, did you mean, what to do."""

import math
import os
import re
import traceback
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.messages import notes, printed, refusal, says
from helpers.ranks import Job, run_ranks
from helpers.right_net import Net, Validated, samples, sgd
from helpers.trainers import fitted, quiet
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import paceline
from paceline import PacelineError, Trainer, TrainModule, seed_everything, tools
from paceline.callbacks import Callback, Checkpoint, EarlyStopping, Text
from paceline.strategies import DDP


def dicts(count=8):
    rows = [{"image": torch.rand(4), "label": i % 2} for i in range(count)]
    return DataLoader(rows, batch_size=4)


def fit_fails(module, data=None, *, kind=PacelineError, trainer=None, **more):
    """The error of a fit that must fail without having changed a weight."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(kind) as caught:
        (trainer or quiet()).fit(module, samples() if data is None else data, **more)
    assert type(caught.value) is kind
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was changed"
    return caught.value


def stepping(function, base=Net):
    """A module whose training_step is ``function``."""
    return type("Stepping", (base,), {"training_step": function})()


def logging(*arguments, **options):
    """A module whose training_step calls ``self.log`` with these."""

    def logs(self, batch, batch_idx):
        self.log(*arguments, **options)
        return self.loss(batch)

    return stepping(logs)


# -- 1: what training_step returns ---------------------------------------------------------------


def _no_key(self, batch, batch_idx):
    return {"los": self.loss(batch), "accuracy": 0.5}


def _nothing(self, batch, batch_idx):
    self.loss(batch)


def _a_tuple(self, batch, batch_idx):
    return self.loss(batch), batch[0]


def _detached(self, batch, batch_idx):
    return self.loss(batch).detach()


def _detached_inside(self, batch, batch_idx):
    return {"loss": self.loss(batch).detach()}


def _no_grad(self, batch, batch_idx):
    with torch.no_grad():
        return self.loss(batch)


def _item(self, batch, batch_idx):
    return {"loss": self.loss(batch).item()}


def _bare_item(self, batch, batch_idx):
    return self.loss(batch).item()


def _per_sample(self, batch, batch_idx):
    return cross_entropy(self.net(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (_no_key, ["without 'loss'", "'los', 'accuracy'", "allowed: a Tensor, or a mapping", "fix: name"]),
        (_nothing, ["returned no loss", "got: None", "allowed:", "fix: return loss"]),
        (_a_tuple, ["returned no loss", "got: (float32 [], float32 [4, 4])", "fix: return loss"]),
        (_detached, ["without a gradient", "detached", "fix: remove .detach()"]),
        (_detached_inside, ["without a gradient", "detached", "fix: remove .detach()"]),
        (_no_grad, ["without a gradient", "torch.no_grad()"]),
        (_item, ["must be a tensor", "(float)", "fix:", "without .item()"]),
        (
            _bare_item,
            [
                "the loss that training_step returned must be a tensor",
                "(float)",
                "allowed:",
                "without .item()",
            ],
        ),
        (_per_sample, ["must be a scalar", "float32 [4]", "one element", "loss.mean()"]),
    ],
)
def test_loss_that_cannot_be_trained_on(step, expected):
    says(printed(fit_fails(stepping(step))), "training_step", "step 1, epoch 1", *expected)


def test_the_place_of_a_wrong_loss_is_the_users_file_and_line():
    # No frame of the step is left in the traceback by then: only the message can say where it is.
    line = _nothing.__code__.co_firstlineno
    assert f"{Path(__file__).name}:{line}" in printed(fit_fails(stepping(_nothing)))


# -- 2: optimizers -------------------------------------------------------------------------------


def configured(function, base=Net):
    return type("Configured", (base,), {"configure_optimizers": function})()


def test_no_configure_optimizers():
    class Bare(TrainModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 2)

        def training_step(self, batch):
            raise AssertionError("nothing is computed")

    says(printed(fit_fails(Bare())), "Bare has no configure_optimizers", "return torch.optim.")


def test_optimizer_over_some_parameters_names_the_others():
    class Two(Net):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(2, 2)

        def configure_optimizers(self):
            return sgd(self.head)

    module = Two()
    text = printed(fit_fails(module))
    says(text, "configure_optimizers: 2 of 4 trainable parameters", "net.weight, net.bias")
    assert "head" not in text
    says(text, "self.parameters()", "requires_grad_(False)")
    assert module.calls == 0


def test_many_forgotten_parameters_fit_on_a_line():
    class Deep(Net):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(50))

        def configure_optimizers(self):
            return sgd(self.net)

    says(printed(fit_fails(Deep())), "100 of 102", "and 94 more")


OF = "fix: subclass TrainModule, or TrainModule.of(model, loss, optimizer)"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Net().requires_grad_(False), ["no trainable parameter", "requires_grad_(True)"]),
        (lambda: nn.Linear(4, 2), ["fit takes a TrainModule", "got: Linear", OF]),
        (lambda: type("Bare", (TrainModule,), {})(), ["Bare has no training_step", "return loss"]),
        (
            lambda: configured(lambda self: torch.optim.SGD(nn.Linear(4, 2).parameters())),
            ["2 of 2 trainable parameters", "net.weight, net.bias"],
        ),
        (lambda: logging("accuracy", 0.5, reduce="meen"), ["no reduction 'meen'", "did you mean: mean?"]),
        (lambda: logging(torch.zeros(16, 10), "scores"), ["name of a value is a string"]),
        (lambda: logging(0.5, "scores"), ["name of a value is a string"]),
        (
            lambda: Plateau(),
            ["ReduceLROnPlateau watches a value, but none is named", '"monitor": "val/loss"'],
        ),
    ],
)
def test_wrong_modules(make, expected):
    says(printed(fit_fails(make(), val_dataloader=samples())), *expected)


@pytest.mark.parametrize("trained", [True, False])
def test_layers_that_torch_does_not_find_are_named_beside_those_that_it_finds(trained, capsys):
    class Blocks(Net):
        def __init__(self):
            super().__init__()
            self.blocks = [nn.Linear(4, 4).requires_grad_(trained)]

        def training_step(self, batch):
            inputs, targets = batch
            return cross_entropy(self.net(self.blocks[0](inputs)), targets)

    quiet(max_steps=3).fit(Blocks(), samples())
    said = "2 weights in blocks get no update: parameters() does not find them (hidden-weights)"
    out = capsys.readouterr().out
    assert (said in out) is ("use nn.ModuleList" in out) is trained


def test_frozen_parameters_need_no_optimizer():
    class Frozen(Net):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 4).requires_grad_(False)

        def configure_optimizers(self):
            return sgd(self.net)

    trainer = fitted(Frozen(), samples(), max_steps=1)
    assert trainer.global_step == 1


def test_a_last_batch_of_one_sample_that_batch_norm_refuses():
    module = Net()
    module.net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    data = DataLoader(TensorDataset(torch.randn(5, 4), torch.zeros(5).long()), 4)
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        quiet().fit(module, data)
    assert "in step 2, epoch 1, on the batch" in notes(caught.value)
    assert "drop_last=True in the training DataLoader" in notes(caught.value)


class Longer(IterableDataset):
    """Says that it has 8 samples, and has 16."""

    def __iter__(self):
        return iter([(torch.zeros(4), 0)] * 16)

    def __len__(self):
        return 8


@pytest.mark.parametrize(
    ("steps", "cure"),
    [
        (None, "was to have 2 steps, by the 2 of an epoch that the data's len() gives"),
        (1, "total_steps=self.trainer.total_steps"),
    ],
)
def test_a_schedule_that_ends_before_the_run(steps, cure):
    def optimizers(self):
        optimizer = sgd(self)
        length = steps or self.trainer.total_steps
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=length)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    with pytest.raises(ValueError, match="Tried to step") as caught:
        quiet().fit(configured(optimizers), DataLoader(Longer(), 4))
    assert cure in notes(caught.value)


@pytest.mark.parametrize(
    ("lazy", "named"),
    [(nn.LazyLinear(2), "net.weight"), (nn.LazyBatchNorm1d(affine=False), "net.running_mean")],
)
def test_sizes_that_a_first_batch_would_give_are_asked_for(lazy, named):
    module = Net()
    module.body = nn.Linear(4, 4)
    module.net = lazy
    says(
        refusal(quiet(max_steps=1).fit, module, samples()),
        "has no size before a first batch",
        f"got: {named}",
        "self.net(torch.zeros(2, ...))",
    )
    assert module.calls == 0


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda self: None, ["got: None", "allowed: an optimizer"]),
        (lambda self: [], ["nothing to train with", "allowed: an optimizer"]),
        (lambda self: self.net, ["got: Linear", "allowed: an optimizer"]),
        (lambda self: {"optimiser": torch.optim.SGD(self.parameters())}, ["'optimiser': SGD", "no 'optim"]),
        (lambda self: torch.optim.SGD, ["allowed: an optimizer"]),
        (
            lambda self: [torch.optim.SGD(self.parameters()), torch.optim.Adam(self.parameters())],
            ["manual optimization", "automatic_optimization = False"],
        ),
        (lambda self: torch.optim.LBFGS(self.parameters()), ["LBFGS", "automatic_optimization = False"]),
    ],
)
def test_configure_optimizers_returns_something_else(returned, expected):
    module = configured(returned)
    says(printed(fit_fails(module)), *expected)
    assert module.calls == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"intervall": "step"}, ["'intervall'", "did you mean: interval?"]),
        ({"interval": "steps"}, ["interval", "got: steps", "'epoch', 'step'"]),
        ({"frequency": 0}, ["frequency", "got: 0", "at least 1"]),
    ],
)
def test_scheduler_options(options, expected):
    def configure(self):
        optimizer = sgd(self)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **options}}

    says(printed(fit_fails(configured(configure))), *expected)


# -- 3 and 4: strategy and precision -------------------------------------------------------------


def test_strategy_typo():
    text = refusal(quiet, strategy="dpp")
    says(text, "strategy: there is no 'dpp'", "allowed: auto, single, ddp, fsdp, hsdp, deepspeed")
    assert re.search(r"did you mean:? '?ddp'?\?", text)


@pytest.mark.parametrize("name", ["dp", "data_parallel"])
def test_data_parallel_is_answered_with_the_way_to_ddp(name):
    text = refusal(quiet, strategy=name)
    says(text, f"there is no {name!r}", "did you mean: ddp?")
    assert 'strategy="ddp" starts a process for each device' in text


def test_precision_typo():
    text = refusal(quiet, precision="bf-16")
    says(text, "precision: there is no 'bf-16'", "allowed: 32, bf16, fp16, 64")
    assert re.search(r"did you mean:? '?bf16'?\?", text)


def test_precision_the_device_cannot(monkeypatch):
    real = torch.mm

    def no_half(x, *more, **named):
        if x.dtype is torch.float16:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")
        return real(x, *more, **named)

    monkeypatch.setattr(torch, "mm", no_half)
    text = refusal(quiet, precision="fp16")
    says(text, "precision 'fp16' does not run on cpu", "not implemented for 'Half'")
    says(text, "got: precision='fp16'", "fix: precision=")
    assert quiet(precision="bf16").strategy.precision.name == "bf16"


# -- 5: batches ----------------------------------------------------------------------------------


def _on_values(self, batch, batch_idx):
    x, y = batch
    return cross_entropy(self.net(x), y)


def _on_three(self, batch, batch_idx):
    x, y, _mask = batch
    return cross_entropy(self.net(x), y)


def _on_one(self, batch, batch_idx):
    (x,) = batch
    return self.net(x).mean()


def _by_number(self, batch, batch_idx):
    return cross_entropy(self.net(batch[0]), batch[1])


def _by_key(self, batch, batch_idx):
    return cross_entropy(self.net(batch["image"]), batch["label"])


def _by_other_key(self, batch, batch_idx):
    return cross_entropy(self.net(batch["images"]), batch["label"])


def _whole(self, batch, batch_idx):
    return self.net(batch).mean()


def _attribute(self, batch, batch_idx):
    return self.net(batch.flatten(1)).mean()


def bytes_():
    return samples(x=torch.zeros(16, 4, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("step", "data", "kind", "structure", "cure"),
    [
        (_on_values, bytes_, RuntimeError, "[uint8 [4, 4], int64 [4]]", "images.float() / 255"),
        (
            _on_values,
            lambda: samples(x=torch.rand(16, 4, dtype=torch.float64)),
            RuntimeError,
            "[float64 [4, 4], int64 [4]]",
            "x.float()",
        ),
        (
            _on_values,
            lambda: samples(y=torch.zeros(16, dtype=torch.int32)),
            RuntimeError,
            "[float32 [4, 4], int32 [4]]",
            "labels.long()",
        ),
        (_on_values, dicts, TypeError, "{'image': float32 [4, 4], 'label': int64 [4]}", "batch['image']"),
        (_on_three, dicts, ValueError, "{'image': float32 [4, 4], 'label': int64 [4]}", "batch['image']"),
        (_by_number, dicts, KeyError, "{'image': float32 [4, 4], 'label': int64 [4]}", "batch['image']"),
        (_by_other_key, dicts, KeyError, "{'image': float32 [4, 4], 'label': int64 [4]}", "batch['image']"),
        (_on_three, samples, ValueError, "[float32 [4, 4], int64 [4]]", "unpack it as 2 values"),
        (_on_one, samples, ValueError, "[float32 [4, 4], int64 [4]]", "unpack it as 2 values"),
        (_by_key, samples, TypeError, "[float32 [4, 4], int64 [4]]", "unpack it as 2 values"),
        (_whole, samples, TypeError, "[float32 [4, 4], int64 [4]]", "unpack it as 2 values"),
        (_attribute, samples, AttributeError, "[float32 [4, 4], int64 [4]]", "unpack it as 2 values"),
    ],
)
def test_batch_of_the_wrong_kind(step, data, kind, structure, cure):
    error = fit_fails(stepping(step), data(), kind=kind)
    text = notes(error)
    assert "step 1, epoch 1" in text
    assert structure in text
    fixes = [line for line in error.__notes__ if line.startswith("fix: ")]
    assert len(fixes) == 1, text
    assert cure in fixes[0]


def test_the_step_of_a_batch_is_the_one_under_way():
    def late(self, batch, batch_idx):
        self.calls += 1
        if self.calls == 6:
            raise IndexError("mine")
        return self.loss(batch) * 0

    error = fit_fails(stepping(late), kind=IndexError, trainer=quiet(max_epochs=3))
    assert "step 6, epoch 2" in notes(error)
    assert str(error) == "mine"


@pytest.mark.parametrize("kind", [ValueError, TypeError, AttributeError])
def test_no_cure_is_made_up_for_the_users_own_error(kind):
    def own_check(self, batch, batch_idx):
        cross_entropy(self.net(batch["image"]), batch["label"])
        raise kind("the teacher's logits are stale")

    error = fit_fails(stepping(own_check), dicts(), kind=kind)
    assert "step 1, epoch 1" in notes(error)
    assert "fix:" not in notes(error)


def test_wrong_batch_in_validation_is_reported_before_training():
    class Wrong(Net):
        def validation_step(self, batch, batch_idx):
            x, _y, _mask = batch
            return self.net(x).mean()

    module = Wrong()
    error = fit_fails(module, kind=ValueError, val_dataloader=samples())
    says(notes(error), "validate, batch 0", "[float32 [4, 4], int64 [4]]", "unpack it as 2 values")
    assert module.calls == 0


# -- 6: names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_epoch": 3}, "max_epoch: no such argument; did you mean max_epochs?"),
        ({"max_epochs": "three"}, "max_epochs: got 'three'; allowed: an integer of at least 1"),
        ({"num_nodes": "two"}, "num_nodes: got 'two'"),
        ({"devices": 2**70}, "devices: got 1180591620717411303424"),
        ({"barebones": True}, "use progress=False, loggers=False, checkpoint=False"),
        ({"profiler": True}, "use profile=True"),
        ({"inference_mode": True}, "none is needed: evaluations run without gradients"),
        ({"use_distributed_sampler": True}, "none is needed: the samples of any sampler are divided"),
    ],
)
def test_trainer_arguments(given, expected):
    assert expected in refusal(quiet, **given)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("accumulate_grad_batches", "accumulate"),
        ("gradient_accumulation_steps", "accumulate"),
        ("gradient_clip_val", "clip_grad_norm"),
        ("gradient_clip", "clip_grad_norm"),
        ("grad_clip", "clip_grad_norm"),
        ("clip_grad", "clip_grad_norm"),
        ("num_train_epochs", "max_epochs"),
        ("mixed_precision", "precision"),
        ("resume", "fit(resume=...)"),
    ],
)
def test_an_argument_that_has_another_name_or_place(name, ours):
    assert f"{name}: unknown argument; use {ours}" in refusal(quiet, **{name: 1})


@pytest.mark.parametrize(
    ("method", "given", "ours"),
    [
        ("fit", "ckpt_path", "resume"),
        ("fit", "train_dataloaders", "train_dataloader"),
        ("fit", "eval_dataset", "val_dataloader"),
        ("fit", "train_loader", "train_dataloader"),
        ("fit", "resum", "resume"),
        ("validate", "ckpt_path", "weights"),
        ("validate", "dataloaders", "dataloader"),
        ("test", "dataloder", "dataloader"),
        ("predict", "ckpt_path", "weights"),
        # A right name of another method must not be offered as its own correction.
        ("fit", "dataloader", "train_dataloader"),
        ("validate", "val_dataloader", "dataloader"),
    ],
)
def test_arguments_of_a_run(method, given, ours):
    module = Net()
    text = refusal(getattr(quiet(), method), module, **{given: samples()})
    assert f"{method} has no argument {given!r}" in text
    assert re.search(rf"(did you mean: {ours}\?|use {ours})", text), text
    assert module.calls == 0


@pytest.mark.parametrize(
    ("method", "given", "meant"),
    [
        ("fit", {"resume": "atuo"}, "auto"),
        ("fit", {"resume": "lastest"}, "latest"),
        ("validate", {"weights": "bset"}, "best"),
        ("fit", {"resume": "runs/atuo"}, None),
        ("validate", {"weights": "atuo"}, None),
    ],
)
def test_a_misspelt_word_for_a_checkpoint(method, given, meant, tmp_path, monkeypatch):
    class Judged(Net):
        def validation_step(self, batch):
            return self.training_step(batch)

    monkeypatch.chdir(tmp_path)
    text = refusal(getattr(quiet(), method), Judged(), samples(), **given)
    assert "there is no checkpoint at this path" in text
    assert (f"did you mean: {meant}?" in text) if meant else "did you mean" not in text


@pytest.mark.parametrize(
    ("attribute", "ours"),
    [
        ("callback_metrics", "metrics"),
        ("logged_metrics", "metrics"),
        ("current_epoch", "epoch"),
        ("estimated_stepping_batches", "total_steps"),
        ("is_main_process", "is_global_zero"),
        ("log_dir", "folder"),
        ("lr_find", r"paceline\.tools\.find_learning_rate\("),
        ("tune", r"find_learning_rate or find_batch_size of paceline\.tools"),
        ("scale_batch_size", r"paceline\.tools\.find_batch_size\("),
    ],
)
def test_peers_attributes(attribute, ours):
    with pytest.raises(AttributeError, match=rf"{attribute}.*use {ours}"):
        getattr(quiet(), attribute)


def test_attribute_typo():
    with pytest.raises(AttributeError, match=r"'global_stp'; did you mean global_step\?"):
        quiet().global_stp  # noqa: B018


def test_lightnings_way_to_stop_is_not_ignored():
    with pytest.raises((AttributeError, PacelineError), match=r"stop\("):
        quiet().should_stop = True


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("on_step", "log_every"),
        ("on_epoch", "as train/accuracy_epoch"),
        ("sync_dist", "always reduced"),
        ("batch_size", "weight="),
        ("prog_br", "did you mean: prog_bar?"),
    ],
)
def test_log_arguments(option, expected):
    text = printed(fit_fails(logging("accuracy", 0.5, **{option: True})))
    says(text, f"log has no argument {option!r}", "allowed: prog_bar, weight, reduce", expected)


@pytest.mark.parametrize(
    ("hook", "meant"),
    [
        ("on_train_batch_end", "on_step_end"),
        ("on_validation_epoch_end", "on_validation_end"),
        ("on_step_ned", "on_step_end"),
    ],
)
@pytest.mark.parametrize("base", [Callback, Net])
def test_a_hook_that_is_none(hook, meant, base):
    owner = type("Owner", (base,), {hook: lambda self, *_: None})()
    module = owner if base is Net else Net()
    text = printed(fit_fails(module, trainer=quiet(callbacks=() if base is Net else [owner])))
    says(text, f"Owner.{hook} is no hook", f"did you mean: {meant}?")
    assert module.calls == 0


NO_MODULE = "without a module takes the one of the last run, and there was none"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: Checkpoint(save_top_k=2), ["keep"]),
        (lambda: Checkpoint(every_n_epochs=2), ["every"]),
        (lambda: EarlyStopping("val/loss", patiense=3), ["patience"]),
        (
            lambda: EarlyStopping("val/loss", mode="mim"),
            ["mode", "got 'mim'", "'min', 'max'", "mean 'min'?"],
        ),
        (lambda: EarlyStopping("val/loss", patience=0), ["patience", "got 0", "at least 1"]),
        (lambda: EarlyStopping("val/score"), ["'val/score'", "mode='min' or mode='max'"]),
        (lambda: EarlyStopping("val/acuracy"), ["'val/acuracy'", "did you mean: val/accuracy?"]),
        (lambda: Checkpoint(monitor="val_los"), ["'val/los'", "did you mean: val/loss?"]),
        (lambda: Checkpoint(keep=0), ["keep", "got 0", "or None"]),
        (lambda: Checkpoint(mode="max"), ["mode is given without monitor"]),
        (lambda: EarlyStopping("val/loss", min_delta="0.01"), ["min_delta", "got '0.01'", "a number"]),
        (lambda: seed_everything("7"), ["seed", "got '7'", "an integer"]),
        (lambda: DDP(static_graph="yes"), ["static_graph", "got 'yes'", "True or False"]),
        (lambda: Checkpoint(every="1epoch"), ["every", "got '1epoch'", '"2ep"']),
        (lambda: quiet().fit(Net(), samples(), resume=True), ["fit(resume=...)", "got: True", "'latest'"]),
        (lambda: quiet().validate(Validated(), samples(), weights=3), ["weights takes a path", "got: 3"]),
        (lambda: quiet().validate(Validated(), samples(), weights="x" * 300), ["too long"]),
        (lambda: Net.load_from_checkpoint(None), ["weights takes a path", "got: None"]),
        (lambda: paceline.Run(3), ["Run takes a path", "got: 3"]),
        (lambda: quiet().fit(Net(), "train"), ["cannot be iterated over batches", "got: str"]),
        (lambda: quiet().fit(Net(), samples(), allow={"a": 1}), ["fit(allow=...)", "'a'"]),
        (
            lambda: tools.replay(quiet(), Net(), samples(), step="3", run="r"),
            ["step: got '3'", "an integer"],
        ),
        (lambda: tools.check_invariance(quiet(), Net(), samples(), steps=0), ["steps: got 0"]),
        (lambda: quiet().fit(train_dataloader=samples()), ["fix: fit(module, ...)"]),
        (lambda: quiet().fit(model=Net()), ["module, the first argument"]),
        (lambda: quiet().validate(model=Net()), ["module, the first argument"]),
        (
            lambda: quiet().fit(samples(), Net()),
            ["got: DataLoader", "module comes first: fit(module, ...)"],
        ),
        (
            lambda: quiet().validate(samples(), Net()),
            ["got: DataLoader", "module comes first: validate(mod"],
        ),
        *[
            (
                partial(getattr(quiet(), method), dataloader=samples()),
                [f"{method} {NO_MODULE}", f"{method}(module"],
            )
            for method in ("validate", "test", "predict")
        ],
    ],
)
def test_values_of_calls(call, expected):
    says(refusal(call), *expected)


def test_a_number_may_be_written_as_text():
    assert Trainer(num_nodes="1", max_epochs="2").settings.num_nodes == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda long: Trainer(strategy=long),
        lambda long: Trainer(max_epochs=long),
        lambda long: Trainer(name=long + "/"),
        lambda long: Trainer(precision=long),
        lambda long: Checkpoint(every=long),
        lambda long: EarlyStopping("val/loss", mode=long),
        lambda long: quiet().fit(Net(), samples(), resume=[long]),
        lambda long: Trainer(**{long: 1}),
    ],
)
def test_a_long_value_makes_no_long_message(call):
    with pytest.raises(PacelineError) as caught:
        call("x" * 100_000)
    assert len(str(caught.value)) < 1500


class OldManual(Net):
    def training_step(self, batch, batch_idx, optimizer_idx):
        return self.loss(batch)


class OldValidation(Net):
    def validation_step(self, batch, batch_idx, dataloader_idx, extra):
        return self.loss(batch)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (OldManual, ["training_step asks for more", "optimizer_idx", "automatic_optimization = False"]),
        (OldValidation, ["validation_step asks for more", "extra", "batch, batch_idx, dataloader_idx"]),
    ],
)
def test_arguments_that_no_step_gets_are_named_before_training(module, expected):
    made = module()
    says(printed(fit_fails(made, samples(), val_dataloader=samples())), *expected)
    assert made.calls == 0


def test_the_keys_of_a_batch_that_was_unpacked_as_a_tuple_are_named():
    class Unpacks(Net):
        def training_step(self, batch, batch_idx):
            images, _ = batch
            return self.net(images).mean()

    text = "\n".join(fit_fails(Unpacks(), dicts(), kind=TypeError).__notes__)
    says(text, "the batch is a dict with the keys 'image', 'label'", "batch['image']")


# -- 7: monitors ---------------------------------------------------------------------------------


class Plateau(Validated):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def configure_optimizers(self):
        optimizer = sgd(self)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **self.options}}


def watching(name):
    """(who watches, the module, the Trainer's arguments), for everything that can watch a value."""
    return [
        ("EarlyStopping", Validated(), {"callbacks": [EarlyStopping(name, mode="max")]}),
        ("Checkpoint", Validated(), {"callbacks": [Checkpoint(monitor=name, mode="max")]}),
        ("ReduceLROnPlateau", Plateau(monitor=name), {}),
    ]


WHO = range(3)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", ["val/acuracy", "val_acuracy", "acuracy"])
def test_monitor_that_is_never_logged(who, name):
    owner, module, arguments = watching(name)[who]
    error = fit_fails(module, trainer=quiet(**arguments), val_dataloader=samples())
    text = printed(error)
    assert f"{owner} watches 'val/acuracy', which validation does not log" in text
    says(text, "got: logged: val/accuracy, val/loss", "did you mean: val/accuracy?", "fix:")
    assert module.calls == 0


@pytest.mark.parametrize("who", WHO)
def test_monitor_of_validation_without_data(who):
    owner, module, arguments = watching("val/loss")[who]
    text = printed(fit_fails(module, trainer=quiet(**arguments)))
    says(text, f"{owner} watches 'val/loss', but this run has no validation", "val_dataloader")
    assert module.calls == 0


def test_monitor_of_validation_without_a_step():
    module = Net()
    trainer = quiet(callbacks=[EarlyStopping("val/loss")])
    text = printed(fit_fails(module, trainer=trainer, val_dataloader=samples()))
    says(text, "this run has no validation", "validation_step")
    assert module.calls == 0


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("never", [{"validate_every": None}, {"limit_val_batches": 0}])
def test_monitor_where_validation_is_switched_off(who, never):
    _, module, arguments = watching("val/loss")[who]
    error = fit_fails(module, trainer=quiet(**arguments, **never), val_dataloader=samples())
    assert "'val/loss'" in printed(error)
    assert next(iter(never)) in str(error)
    assert module.calls == 0


def test_monitor_of_training_that_is_never_logged():
    # Training logs nothing before it runs: reported at the first look, with the nearest name.
    trainer = quiet(max_epochs=2, callbacks=[EarlyStopping("train/los", "min")])
    module = stepping(lambda self, batch: self.loss(batch))
    text = refusal(trainer.fit, module, samples())
    says(text, "EarlyStopping watches 'train/los', which was not logged", "did you mean: train/loss?")
    assert trainer.epoch == 0


@pytest.mark.parametrize("who", WHO)
def test_right_monitor_is_accepted(who):
    _, module, arguments = watching("val_accuracy")[who]
    trainer = fitted(module, samples(), samples(), max_epochs=1, **arguments)
    assert trainer.metrics["val/accuracy"] == 0.5


@pytest.mark.parametrize(
    ("module", "data", "expected"),
    [
        (Validated, None, "has a validation_step, but there is no validation data"),
        (Net, samples, "there is validation data, but Net has no validation_step\n"),
        (
            type("Named", (Net,), {"valid_step": Validated.validation_step}),
            samples,
            "Named has no validation_step, and its valid_step is never called by a Trainer\n",
        ),
    ],
)
def test_half_a_validation_is_said_once(module, data, expected, capsys):
    quiet(max_steps=1).fit(module(), samples(), data and data())
    assert capsys.readouterr().out.count(expected) == 1


# -- 11: logged values ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.zeros(16, 10), ["a tensor of shape (16, 10)", "value.mean()"]),
        (torch.zeros(0), ["a tensor of shape (0,)"]),
        (torch.zeros(16, 10).numpy(), ["of shape (16, 10)"]),
        ("good", ["'good' (str)", "allowed: a scalar"]),
        ("0.5", ["'0.5' (str)", "allowed: a scalar"]),
        (None, ["None (NoneType)", "allowed: a scalar"]),
        ([0.5, 0.6], ["[0.5, 0.6] (list)", "allowed: a scalar"]),
        ({"a": 0.5}, ["keys ['a']", "self.log_dict"]),
        (torch.tensor(1j), ["only scalars"]),
        (Text("a poem"), ["fix: log_text of the module"]),
    ],
    ids=["matrix", "empty", "numpy", "text", "number as text", "None", "list", "dict", "complex", "media"],
)
def test_value_that_is_not_one_number(value, expected):
    error = fit_fails(logging("scores", value))
    says(printed(error), "log('scores')", *expected)
    frames = traceback.extract_tb(error.__traceback__)
    assert ("logs", __file__) in [(f.name, f.filename) for f in frames]  # the user's own line stays


def test_a_matrix_beside_the_loss():
    # self.log was never called: the message must say where the value came from.
    def returns(self, batch, batch_idx):
        return {"loss": self.loss(batch), "logits": self.net(batch[0])}

    text = printed(fit_fails(stepping(returns)))
    says(text, "'logits'", "a tensor of shape (4, 2)")
    assert "where: 'logits' in the mapping that training_step returned" in text
    assert text.count("fix:") == 1
    assert "fix: return the loss alone, or log scalars: self.log('logits', value.mean())" in text


@pytest.mark.parametrize(
    ("as_returned", "name", "what"),
    [
        (lambda logits: {"logits": logits}, "logits", "'logits' in the mapping"),
        (lambda logits: logits, "loss", "the tensor"),
    ],
    ids=["in a mapping", "alone"],
)
def test_a_matrix_that_validation_returned(as_returned, name, what):
    def returns(self, batch, batch_idx):
        return as_returned(self.net(batch[0]))

    module = type("Returning", (Validated,), {"validation_step": returns})()
    text = refusal(quiet().validate, module, samples())
    assert f"where: {what} that validation_step returned, which is logged" in text
    assert f"fix: return nothing, or log scalars: self.log('{name}', value.mean())" in text


@pytest.mark.parametrize("value", [math.nan, torch.tensor(math.nan)], ids=["float", "tensor"])
def test_a_nan_is_reported_once(value, capsys):
    trainer = fitted(logging("scores", value), samples(), max_epochs=2, log_every=1)
    assert capsys.readouterr().out.count("log('scores'): the value is nan") == 1
    assert math.isnan(trainer.metrics["train/scores"])


# -- 12: in-place operations ---------------------------------------------------------------------


def _adds_in_place(self, batch, batch_idx):
    x, y = batch
    scores = self.net(x).exp()  # SAVED
    scores += 1
    return cross_entropy(scores, y)


def _in_a_layer(self, batch, batch_idx):
    x, y = batch
    gate = torch.sigmoid(self.net(x))  # GATE
    return cross_entropy(nn.functional.relu(gate, inplace=True), y)


def line_of(marker, file=__file__):
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {marker}"))


@pytest.mark.parametrize(("step", "marker"), [(_adds_in_place, "SAVED"), (_in_a_layer, "GATE")])
def test_in_place_operation_names_the_users_line(step, marker):
    error = fit_fails(stepping(step), kind=RuntimeError)
    text = notes(error)
    says(text, "step 1, epoch 1", "changed in place", f"{__file__}:{line_of(marker)}:", "fix:", "x = x + y")


def test_in_place_operation_under_manual_optimization():
    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            scores = self.net(batch[0]).exp()  # MANUAL
            scores += 1
            self.manual_backward(cross_entropy(scores, batch[1]))
            self.optimizers().step()

    error = fit_fails(Manual(), kind=RuntimeError)
    assert f"{__file__}:{line_of('MANUAL')}:" in notes(error)


# -- a loss that is not finite -------------------------------------------------------------------


class Bad(Net):
    """Its loss is not finite in the calls given; weights are kept before every step."""

    def __init__(self, calls=(3,), value=math.nan):
        super().__init__()
        self.bad_calls, self.value = calls, value
        self.kept = []

    def on_step_start(self, trainer):
        self.kept.append(self.net.weight.detach().clone())

    def training_step(self, batch, batch_idx):
        self.calls += 1
        loss = self.loss(batch)
        return loss * self.value if self.calls in self.bad_calls else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.fault(17)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_nan_loss_raises_before_the_weights_change(value, accumulate):
    module = Bad(calls=(4,), value=value)
    text = refusal(quiet(accumulate=accumulate).fit, module, samples(32))
    step = 4 // accumulate
    assert f"the loss is {value}; nothing was updated" in text
    says(text, f"step {step}, epoch 1, rank 0, dataset indices 12, 13, 14, 15", "fix:", 'nonfinite="skip"')
    assert len(module.kept) == step
    assert torch.equal(module.net.weight, module.kept[-1])


@pytest.mark.fault(17)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_skip_leaves_the_step_out_and_says_so(accumulate, capsys):
    module = Bad(calls=(2 * accumulate,))
    trainer = fitted(module, samples(32), nonfinite="skip", accumulate=accumulate)
    assert "step 2, epoch 1: the loss is nan; the update is skipped" in capsys.readouterr().out
    assert (trainer.global_step, trainer.counters.skipped_steps) == (8 // accumulate, 1)
    assert torch.equal(module.kept[2], module.kept[1])
    assert not torch.equal(module.kept[3], module.kept[2])
    assert torch.isfinite(module.net.weight).all()
    assert math.isfinite(trainer.metrics["train/loss_epoch"])


def test_a_skipped_step_is_a_step_never_taken():
    # The gradients of its good micro-batch must not leak into the next step.
    class Without(Bad):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = [(torch.rand(4, 4), torch.tensor([0, 1, 0, 1])) for _ in range(6)]
    skipping, plain = Without(calls=(4,)), Without(calls=())
    plain.load_state_dict(skipping.state_dict())
    quiet(nonfinite="skip", accumulate=2).fit(skipping, data)
    quiet(accumulate=2).fit(plain, data[:2] + data[4:])
    torch.testing.assert_close(skipping.net.weight, plain.net.weight, rtol=0, atol=0)


def test_ignore_continues():
    module = Bad(calls=(2,))
    trainer = fitted(module, samples(), nonfinite="ignore")
    assert trainer.global_step == 4
    assert module.net.weight.isnan().all()


def test_a_nan_loss_under_manual_optimization():
    class Manual(Bad):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    module = Manual(calls=(2,))
    with pytest.raises(PacelineError, match="the loss is nan"):
        quiet().fit(module, samples())
    assert torch.equal(module.net.weight, module.kept[1])


# -- the form ------------------------------------------------------------------------------------

_HEAD = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from paceline import Trainer, TrainModule

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
    def forward(self, x):
        return self.conv(x).mean((2, 3))

class Base(TrainModule):
    def __init__(self):
        super().__init__()
        self.net = Encoder()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

images, labels = torch.rand(8, 3, 4, 4), torch.arange(8) % 4
"""
_PAIRS = "\ndata = DataLoader(TensorDataset(images, labels), batch_size=4)\n"
_FIT = '\nTrainer(accelerator="cpu", loggers=False, checkpoint=False).fit(Mine(), data)  # HERE\n'
_NO_LOSS = """
class Mine(Base):
    def training_step(self, batch):
        x, y = batch
        return {"accuracy": cross_entropy(self.net(x), y)}
"""
_UNPACKS = """
class Mine(Base):
    def training_step(self, batch):
        x, y = batch
        scores = self.net(x)  # STEP
        return cross_entropy(scores, y)
"""
_IN_PLACE = """
class Mine(Base):
    def training_step(self, batch):
        x, y = batch
        scores = self.net(x).exp()  # SAVED
        scores += 1
        return cross_entropy(scores, y)
"""
_BYTES = "\nimages = (images * 255).byte()\n"
_DICTS = '\ndata = DataLoader([{"x": x, "y": y} for x, y in zip(images, labels)], batch_size=4)\n'
_SCRIPTS = {
    "no loss": (_HEAD + _PAIRS + _NO_LOSS + _FIT, ["without 'loss'", "'accuracy'"], ["HERE"]),
    "strategy": (
        'from paceline import Trainer\n\nTrainer(strategy="dpp", max_epochs=1)  # HERE\n',
        ["'dpp'", "ddp?"],
        ["HERE"],
    ),
    "uint8": (
        _HEAD + _BYTES + _PAIRS + _UNPACKS + _FIT,
        ["RuntimeError", "uint8 [4, 3, 4, 4]", "fix: uint8"],
        ["HERE", "STEP"],
    ),
    # torch answers a wrong argument of conv2d with a list of overloads: six long lines.
    "dict": (
        _HEAD + _DICTS + _UNPACKS + _FIT,
        ["TypeError: conv2d()", "{'x': float32 [4, 3, 4, 4], 'y': int64 [4]}", "fix: the batch is"],
        ["HERE", "STEP"],
    ),
    "typo": (
        "from paceline import Trainer\n\nTrainer(max_epoch=1, accumulate_grad_batches=2)  # HERE\n",
        ["did you mean max_epochs?", "use accumulate"],
        ["HERE"],
    ),
    "in place": (
        _HEAD + _PAIRS + _IN_PLACE + _FIT,
        ["RuntimeError", "inplace operation", "scores = self.net(x).exp()", "fix:"],
        ["HERE"],
    ),
}


def start(folder, script, **variables):
    file = folder / "train.py"
    file.write_text(script, encoding="utf-8")
    return file, Job(file, 1, folder=folder, seconds=120, environment=variables)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every script's (standard error, exit code, file), run side by side."""
    started = {}
    for name, (script, *_) in _SCRIPTS.items():
        started[name] = start(tmp_path_factory.mktemp(name.replace(" ", "-")), script)
    started["full"] = start(
        tmp_path_factory.mktemp("full"), _SCRIPTS["uint8"][0], PACELINE_TRACEBACK="full"
    )
    ended = {name: (file, job.wait()) for name, (file, job) in started.items()}
    return {name: (found.stderr, found.codes[0], str(file)) for name, (file, found) in ended.items()}


def own_frames(stderr):
    package = os.path.dirname(os.path.abspath(paceline.__file__)) + os.sep
    folders = ("trainer", "callbacks", "strategies", "common", "tools", "other_trainers")
    return [line for line in stderr.splitlines() if any(f'"{package}{f}{os.sep}' in line for f in folders)]


@pytest.mark.parametrize("name", _SCRIPTS)
def test_what_is_printed_is_short_and_the_users_own(runs, name):
    stderr, code, file = runs[name]
    _, expected, places = _SCRIPTS[name]
    assert code == 1
    assert own_frames(stderr) == []
    for marker in places:
        assert f'File "{file}", line {line_of(marker, file)}, in ' in stderr
    for part in expected:
        assert part in stderr
    assert len(stderr.splitlines()) <= 12, stderr


def test_in_place_line_is_printed(runs):
    stderr, _, file = runs["in place"]
    assert f"{file}:{line_of('SAVED', file)}: scores" in stderr


def test_full_traceback_shows_ours(runs):
    stderr, code, _ = runs["full"]
    assert code == 1
    assert own_frames(stderr)
    assert "RuntimeError" in stderr
    assert "fix: uint8" in stderr


@pytest.mark.fault(21)
def test_an_error_of_a_loader_worker_keeps_its_reason_and_line(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        """import torch
from torch.utils.data import DataLoader, Dataset
from paceline import Trainer, TrainModule

class Data(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, index):
        if index == 7: raise ValueError("bad image 7")
        return torch.randn(2)

class Net(TrainModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch):
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

Trainer(accelerator="cpu", progress=False).fit(Net(), DataLoader(Data(), 4, num_workers=2))
"""
    )
    done = run_ranks(script, 1, folder=tmp_path, seconds=120, check=False)
    assert done.codes == [1]
    lines = done.stderr.splitlines()
    assert len(lines) <= 12
    assert "ValueError: bad image 7" in lines
    assert any("worker.py" in line and "line 9" in line for line in lines)
