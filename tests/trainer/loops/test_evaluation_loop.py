"""validate, test and predict by themselves: exact values, outputs in order, which weights."""

import pytest
import torch
from helpers.trainers import quiet
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from paceline import DataModule, PacelineError, Trainer, TrainModule
from paceline.callbacks import Callback, Checkpoint


class Line(TrainModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)).double()

    def training_step(self, batch):
        return F.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch):
        lost = (self.net(batch[0]) - batch[1]).abs()
        return {"error": lost.mean(), "worst": lost.max()}

    def test_step(self, batch, batch_idx):
        self.log("error", (self.net(batch[0]) - batch[1]).abs().mean())
        self.log("batches", 1, reduce="sum")

    def predict_step(self, batch):
        return {"out": self.net(batch[0]), "first": batch[0][:, 0], "name": f"{len(batch[0])} samples"}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(samples=14, batch_size=4, **more):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size, **more)


def expected_error(module, data):
    x, y = data.dataset.tensors
    net = module.net[0]  # dropout sleeps in evaluation
    return (net(x) - y).abs().mean().item()


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_validate_is_exact_over_ragged_batches():
    module, data, trainer = Line(), loader(), quiet()
    values = trainer.validate(module, data)
    assert values["val/error"] == pytest.approx(expected_error(module, data), rel=1e-14)
    assert set(values) == {"val/error", "val/worst"}
    assert values.items() <= trainer.metrics.items()
    assert all(type(value) is float for value in values.values())


def test_test_is_exact_and_has_names_of_its_own(capsys):
    module, data = Line(), loader()
    values = quiet().test(module, data)
    expected = pytest.approx(expected_error(module, data), rel=1e-14)
    assert values == {"test/error": expected, "test/batches": 4}
    assert "test/error" in capsys.readouterr().out


def test_evaluation_needs_neither_optimizers_nor_a_training_step_and_writes_nothing(tmp_path):
    class Only(TrainModule):
        def test_step(self, batch):
            return {"count": float(len(batch[0]))}

    trainer = Trainer(run_dir=tmp_path / "runs")
    assert trainer.test(Only(), loader(8, 4)) == {"test/count": 4.0}
    assert trainer.folder is None
    assert not (tmp_path / "runs").exists()


def test_predict_gives_each_batchs_output_on_the_cpu_in_order():
    module, data = Line(), loader()
    outputs = quiet().predict(module, data)
    x = data.dataset.tensors[0]
    assert [output["name"] for output in outputs] == ["4 samples"] * 3 + ["2 samples"]
    assert torch.equal(torch.cat([output["first"] for output in outputs]), x[:, 0])
    # Within rounding: a batch of another size may be summed in another order.
    found = torch.cat([output["out"] for output in outputs])
    torch.testing.assert_close(found, module.net[0](x).detach(), rtol=1e-14, atol=1e-15)
    assert all(not output["out"].requires_grad for output in outputs)
    assert all(output["out"].device.type == "cpu" for output in outputs)


def test_predict_of_a_shuffling_loader_is_repeatable():
    data = loader(shuffle=True)
    first, second = (quiet().predict(Line(), data) for _ in range(2))
    assert all(torch.equal(a["first"], b["first"]) for a, b in zip(first, second, strict=True))


def test_evaluation_leaves_modes_generators_and_weights_alone():
    class Draws(Line):
        def validation_step(self, batch):
            torch.rand(3)
            return super().validation_step(batch)

    module = Draws()
    module.net[1].eval()
    before = (weights(module), torch.get_rng_state())
    quiet().validate(module, loader(shuffle=True))
    assert module.training
    assert module.net[0].training
    assert not module.net[1].training
    assert same(before[0], weights(module))
    assert torch.equal(before[1], torch.get_rng_state())
    assert all(p.grad is None for p in module.parameters())
    assert "_trainer" not in vars(module)


def test_several_dataloaders_by_name():
    module = Line()
    values = quiet().test(module, {"a": loader(14), "b": loader(6)})
    assert values["test/a/error"] == pytest.approx(expected_error(module, loader(14)), rel=1e-14)
    assert values["test/b/error"] == pytest.approx(expected_error(module, loader(6)), rel=1e-14)
    assert (values["test/a/batches"], values["test/b/batches"]) == (4, 2)


def test_the_stage_is_known_and_callbacks_watch():
    seen = []

    class Watch(Callback):
        def on_setup(self, trainer, stage):
            seen.append((trainer.stage, stage))

        def on_test_end(self, trainer):
            seen.append(sorted(trainer.metrics))

        def on_teardown(self, trainer, stage):
            seen.append(stage)

    trainer = quiet(callbacks=Watch())
    trainer.test(Line(), loader())
    assert seen[0] == ("test", "test")
    assert seen[-1] == "test"
    assert trainer.stage == ""


def test_the_end_hooks_find_the_values_in_trainer_metrics():
    # As docs/extending/loop.md says of validation, "the same, with their own names".
    seen = {}

    class Watch(Callback):
        def on_test_end(self, trainer):
            seen.update(trainer.metrics)

        def on_validation_end(self, trainer):
            seen.update(trainer.metrics)

    trainer = quiet(callbacks=Watch())
    tested = trainer.test(Line(), loader())
    validated = trainer.validate(Line(), loader())
    assert seen == tested | validated


def test_what_an_end_hook_logs_is_in_the_result():
    class Logs(Line):
        def on_test_end(self):
            self.log("late", 5.0)

    assert quiet().test(Logs(), loader())["test/late"] == 5.0


@pytest.mark.parametrize(("verb", "step"), [("validate", "validation_step"), ("test", "test_step")])
def test_a_missing_step_or_missing_data_is_reported(verb, step):
    class Empty(TrainModule):
        """No step at all."""

    with pytest.raises(PacelineError, match=f"Empty has no {step}"):
        getattr(quiet(), verb)(Empty(), loader())
    with pytest.raises(PacelineError, match=f"no data to {verb} with"):
        getattr(quiet(), verb)(Line())


def test_without_a_module_the_one_just_trained_is_evaluated():
    module, trainer, data = Line(), quiet(max_epochs=1), loader()
    trainer.fit(module, data)
    assert trainer.test(dataloader=data) == trainer.test(module, data)
    assert trainer.validate(dataloader=data) == trainer.validate(module, data)
    ours, theirs = trainer.predict(dataloader=data), trainer.predict(module, data)
    assert all(torch.equal(a["out"], b["out"]) for a, b in zip(ours, theirs, strict=True))


def test_without_a_module_and_data_those_of_the_last_run_are_taken():
    class Data(DataModule):
        def train_dataloader(self):
            return loader()

        test_dataloader = train_dataloader

    module, trainer = Line(), quiet(max_epochs=1)
    trainer.fit(module, datamodule=Data())
    assert trainer.test() == trainer.test(module, loader())
    with pytest.raises(PacelineError, match="no data to test with"):
        trainer.test(module)  # a module that is given comes with its own data


def test_something_that_is_no_module_is_refused():
    with pytest.raises(PacelineError, match="takes a TrainModule"):
        quiet().validate(nn.Linear(1, 1), loader())


# -- weights -------------------------------------------------------------------------------------


class Worse(Line):
    """Its validation value is best after the second epoch."""

    def validation_step(self, batch):
        self.log("score", [1.0, 3.0, 2.0, 0.0][self.epoch])


@pytest.fixture
def trained(tmp_path):
    kept = []

    class Keep(Callback):
        def on_train_epoch_end(self, trainer):
            kept.append(weights(trainer.module))

    module = Worse()
    trainer = quiet(
        max_epochs=4,
        run_dir=tmp_path / "runs",
        callbacks=[Keep(), Checkpoint(monitor="val/score", mode="max", keep=1)],
    )
    run = trainer.fit(module, loader(), loader())
    return trainer, module, run, kept


def test_weights_best_are_those_of_the_best_validation(trained):
    trainer, module, _, kept = trained
    assert same(weights(module), kept[3])
    values = trainer.test(module, loader(), weights="best")
    assert same(weights(module), kept[1])
    assert values["test/error"] == pytest.approx(expected_error(module, loader()), rel=1e-14)


def test_weights_from_a_checkpoint_or_a_run(trained):
    _, _, run, kept = trained
    for path, epoch in ((run.latest, 3), (str(run.best), 1), (run.folder, 1)):
        module = Worse()
        quiet().test(module, loader(), weights=path)
        assert same(weights(module), kept[epoch]), path


def test_weights_as_they_are(trained):
    trainer, _, _, _ = trained
    module = Worse()
    before = weights(module)
    trainer.predict(module, loader())
    assert same(before, weights(module))


def test_no_best_checkpoint_is_reported():
    with pytest.raises(PacelineError, match="no best checkpoint"):
        quiet().test(Line(), loader(), weights="best")


def test_a_path_without_a_checkpoint_is_reported(tmp_path):
    with pytest.raises(PacelineError, match="no checkpoint at this path"):
        quiet().test(Line(), loader(), weights=tmp_path)


def test_fit_then_test_keeps_counters_and_values(trained):
    trainer, module, _, _ = trained
    trainer.test(module, loader())
    assert trainer.global_step == 16
    assert trainer.metrics["val/score"] == 0.0
    assert "test/error" in trainer.metrics


# -- what fit returns ----------------------------------------------------------------------------


class Plain(Line):
    def __init__(self, width=2, note="x"):
        super().__init__()


def test_a_run_reads_its_metrics_config_and_weights(tmp_path):
    class Scored(Callback):
        def on_validation_end(self, trainer):
            trainer.log("accuracy", trainer.epoch / 4)

    module = Plain(width=3)
    trainer = Trainer(
        max_epochs=3,
        progress=False,
        run_dir=tmp_path / "runs",
        name="trial",
        callbacks=[Scored(), Checkpoint(monitor="val/accuracy")],
    )
    run = trainer.fit(module, loader(), loader())
    assert run.folder == tmp_path / "runs" / "trial" / "1" == trainer.folder
    assert run.metrics["val/accuracy"] == ([4, 8, 12], [0.0, 0.25, 0.5])
    assert run.metrics["val/accuracy"].values[-1] == 0.5
    assert run.metrics["train/loss_epoch"].steps == [4, 8, 12]
    assert run.best == trainer.run.best == run.folder / "checkpoints" / "step-00000012"
    assert run.config["name"] == "trial"
    assert run.config["trainer"]["max_epochs"] == 3
    assert run.config["trainer"]["strategy"] == "single"
    assert run.config["module"]["hparams"] == {"width": 3, "note": "x"}
    loaded = run.load()
    assert type(loaded) is Plain
    assert loaded.hparams == {"width": 3, "note": "x"}
    assert same(weights(loaded), weights(module))
    with pytest.raises(PacelineError, match="val/acuracy"):
        _ = run.metrics["val/acuracy"]


def test_a_run_loads_the_best_or_the_latest(trained):
    _, _, run, kept = trained
    assert same(weights(run.load()), kept[1])
    assert same(weights(run.load(which="latest")), kept[3])
