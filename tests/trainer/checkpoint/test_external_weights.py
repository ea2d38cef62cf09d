"""Weights that other trainers wrote are read by name, and what is in a pickle is never run."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule


class Net(TrainModule):
    def __init__(self, width=4, deep=False):
        super().__init__()
        self.net = nn.Linear(3, width)
        self.head = nn.Linear(width, 1)

    def training_step(self, batch):
        return self.head(self.net(batch[0])).square().mean()

    def validation_step(self, batch):
        return self.head(self.net(batch[0])).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def state(width=4, prefix=""):
    torch.manual_seed(width)
    return {prefix + name: torch.randn_like(value) for name, value in Net(width).state_dict().items()}


def data():
    return DataLoader(TensorDataset(torch.arange(36.0).reshape(12, 3)), 4)


def lightning(path, weights, **more):
    """The keys that Lightning 2.6 writes."""
    torch.save(
        {
            "epoch": 1,
            "global_step": 6,
            "pytorch-lightning_version": "2.6.6",
            "state_dict": weights,
            "loops": {"fit_loop": {"state_dict": {}}},
            "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_path": ""}},
            "optimizer_states": [torch.optim.Adam(Net().parameters()).state_dict()],
            "lr_schedulers": [],
            **more,
        },
        path,
    )
    return path


def write(kind, folder):
    """One of the forms weights come in."""
    folder.mkdir()
    if kind == "lightning":
        return lightning(folder / "last.ckpt", state())
    if kind in ("state.pt", "weights.pth", "pytorch_model.bin"):
        torch.save(state(), folder / kind)
        return folder / kind
    if kind == "model.safetensors":
        save_file(state(), folder / kind)
        return folder / kind
    if kind == "accelerate":
        save_file(state(), folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "optimizer.bin").write_bytes(b"nobody opens this")
        (folder / "random_states_0.pkl").write_bytes(b"nor this")
    if kind == "accelerate, pickled":
        torch.save(state(), folder / "pytorch_model.bin")
    if kind == "sharded":
        weights = state()
        parts = {n: f"model-0000{1 + n.startswith('head')}-of-00002.safetensors" for n in weights}
        for part in set(parts.values()):
            save_file({n: w for n, w in weights.items() if parts[n] == part}, folder / part)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    if kind == "wrapped":
        torch.save(state(prefix="module._orig_mod."), folder / "model.pt")
        return folder / "model.pt"
    if kind == "blocks compiled":
        torch.save(
            {n.replace("net.", "net._orig_mod."): w for n, w in state().items()}, folder / "model.pt"
        )
        return folder / "model.pt"
    return folder


KINDS = [
    *("lightning", "state.pt", "weights.pth", "pytorch_model.bin", "model.safetensors", "accelerate"),
    *("accelerate, pickled", "sharded", "wrapped", "blocks compiled"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_load_from_checkpoint_reads_them(kind, tmp_path):
    module = Net.load_from_checkpoint(write(kind, tmp_path / "from"))
    expected = state()
    assert all(torch.equal(value, expected[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("kind", ["lightning", "accelerate"])
def test_validate_takes_them_as_weights(kind, tmp_path):
    path = write(kind, tmp_path / "from")
    trainer = Trainer(accelerator="cpu", progress=False)
    found = trainer.validate(Net(), data(), weights=path)
    assert found == trainer.validate(Net.load_from_checkpoint(path), data())


def test_constructor_arguments_come_with_a_lightning_checkpoint(tmp_path):
    path = lightning(
        tmp_path / "x.ckpt",
        state(7),
        hyper_parameters={"width": 7, "learning_rate": 0.1},
        hparams_name="kwargs",
    )
    assert Net.load_from_checkpoint(path).hparams == {"width": 7, "deep": False}
    assert Net.load_from_checkpoint(path, deep=True).hparams == {"width": 7, "deep": True}
    with pytest.raises(PacelineError, match=r"another model(.|\n)*net.weight: shape \[7, 3\]"):
        Net.load_from_checkpoint(path, width=4)


def test_a_bare_models_weights_serve_a_module_that_wraps_it(tmp_path):
    class Wraps(TrainModule):
        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))

    class WrapsMore(Wraps):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(1, 1)

    bare = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    torch.save(bare.state_dict(), tmp_path / "bare.pt")
    module = Wraps.load_from_checkpoint(tmp_path / "bare.pt")
    assert torch.equal(module.model[1].weight, bare[1].weight)
    with pytest.raises(PacelineError, match=r"missing in the checkpoint: model\.0\.weight"):
        WrapsMore.load_from_checkpoint(tmp_path / "bare.pt")  # a head left as it was born is no trained one


def test_weights_of_another_model_are_one_report(tmp_path):
    torch.save(state(6) | {"extra": torch.ones(1)}, tmp_path / "x.pt")
    with pytest.raises(PacelineError) as caught:
        Net.load_from_checkpoint(tmp_path / "x.pt")
    text = str(caught.value)
    assert "4 differences" in text
    assert "not in the model: extra" in text
    assert "net.weight: shape [6, 3] in the checkpoint, [4, 3] in the model" in text
    assert len(text.splitlines()) <= 12


class Canary:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.fault(14)
@pytest.mark.parametrize("slot", ["beside", "inside", "instead"])
@pytest.mark.parametrize("suffix", ["ckpt", "pt", "pth", "bin"])
def test_a_pickle_that_would_run_code_is_refused_and_named(suffix, slot, tmp_path):
    canary, path = tmp_path / "canary", tmp_path / f"x.{suffix}"
    content = {"beside": {"state_dict": state(), "callbacks": Canary(canary)}}
    content["inside"] = {"state_dict": state() | {"net.weight": Canary(canary)}}
    content["instead"] = Canary(canary)
    torch.save(content[slot], path)
    with pytest.raises(PacelineError) as caught:
        Net.load_from_checkpoint(path)
    assert str(path) in str(caught.value)
    assert "mkdir" in str(caught.value)
    assert "nothing of it was run" in str(caught.value)
    assert not canary.exists()
    torch.load(path, weights_only=False)
    assert canary.exists()  # it would have shown


@pytest.mark.parametrize("name", ["x.ckpt", "x.safetensors"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x04K\x01."])
def test_what_is_no_such_file_is_reported(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PacelineError, match=name):
        Net.load_from_checkpoint(tmp_path / name)


def test_an_index_may_not_name_files_elsewhere(tmp_path):
    save_file(state(), tmp_path / "outside.safetensors")
    folder = tmp_path / "in"
    folder.mkdir()
    index = {"weight_map": dict.fromkeys(state(), "../outside.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PacelineError, match="outside its folder"):
        Net.load_from_checkpoint(folder)


@pytest.mark.parametrize("kind", ["lightning", "accelerate", "state.pt"])
def test_resuming_from_weights_says_how_to_begin_with_them(kind, tmp_path):
    path = write(kind, tmp_path / "from")
    with pytest.raises(PacelineError, match=r"weights alone(.|\n)*Net.load_from_checkpoint"):
        Trainer(accelerator="cpu", run_dir=tmp_path).fit(Net(), data(), resume=path)


def test_a_missing_path_is_reported(tmp_path):
    with pytest.raises(PacelineError, match="no checkpoint at this path"):
        Net.load_from_checkpoint(tmp_path / "nothing.ckpt")


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.again = nn.Linear(3, 4)
        self.again.weight = self.net.weight


@pytest.mark.parametrize("kept", ["net.weight", "again.weight"])
def test_a_tied_weight_is_read_under_the_one_name_that_the_file_has(tmp_path, kept):
    weights = dict(Tied().state_dict())
    given = {
        n: v.clone() for n, v in weights.items() if n == kept or n not in ("net.weight", "again.weight")
    }
    save_file(given, tmp_path / "weights.safetensors")
    module = Tied.load_from_checkpoint(tmp_path / "weights.safetensors")
    assert module.again.weight is module.net.weight
    for name, value in module.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_a_tied_weight_that_the_file_has_under_no_name_is_missing(tmp_path):
    given = {
        n: v.clone() for n, v in Tied().state_dict().items() if n not in ("net.weight", "again.weight")
    }
    save_file(given, tmp_path / "weights.safetensors")
    with pytest.raises(PacelineError, match=r"missing in the checkpoint: net\.weight"):
        Tied.load_from_checkpoint(tmp_path / "weights.safetensors")


class NewHead(Net):
    """Another head, one part more, and one part less."""

    def __init__(self, width=4, deep=False, strict="of the module"):
        super().__init__(width, deep)
        del self.net.bias
        self.net.register_parameter("bias", None)
        self.head, self.norm = nn.Linear(4, 2), nn.LayerNorm(2)


@pytest.mark.parametrize("kind", ["own", "lightning", "model.safetensors", "wrapped", "bare part"])
def test_weights_that_fit_are_loaded_and_the_others_are_one_warning(kind, tmp_path):
    weights = state()
    if kind == "own":
        run = Trainer(run_dir=tmp_path, accelerator="cpu", progress=False, max_steps=1).fit(Net(), data())
        path, weights = run.latest, Net.load_from_checkpoint(run.latest).state_dict()
    elif kind == "bare part":
        path = tmp_path / "bare.pt"
        torch.save({"weight": weights["net.weight"], "bias": weights["net.bias"]}, path)
    else:
        path = write(kind, tmp_path / "from")
    way = r"NewHead\.load_from_checkpoint\(path, strict=False\)"
    with pytest.raises(PacelineError, match=way):
        NewHead.load_from_checkpoint(path)
    with pytest.warns(UserWarning, match="not loaded") as caught:
        module = NewHead.load_from_checkpoint(path, strict=False)
    assert torch.equal(module.net.weight, weights["net.weight"])
    assert module.hparams["strict"] == "of the module"
    (text,) = [str(one.message) for one in caught]
    expected = ["not in the model: net.bias", "missing in the checkpoint: norm.weight"]
    if kind != "bare part":
        expected.append("head.weight: shape [1, 4] in the checkpoint, [2, 4] in the model")
    assert [line for line in expected if line not in text] == []
    assert len(text.splitlines()) <= 12


def test_what_has_no_weight_in_common_is_an_error_without_strict_too(tmp_path):
    torch.save({"other.weight": torch.ones(2)}, tmp_path / "x.pt")
    with pytest.raises(PacelineError, match="no weight") as caught:
        Net.load_from_checkpoint(tmp_path / "x.pt", strict=False)
    assert "strict=False" not in str(caught.value)


def test_strict_is_true_or_false(tmp_path):
    torch.save(state(), tmp_path / "x.pt")
    with pytest.raises(PacelineError, match="strict is True or False"):
        Net.load_from_checkpoint(tmp_path / "x.pt", strict="no")
