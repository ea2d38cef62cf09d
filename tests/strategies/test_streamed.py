"""``Streamed``: the results of ``Single``, with two blocks of the model in memory at most."""

import gc
import json
import math

import pytest
import torch
from helpers.allocations import most_allocated
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import PacelineError, Trainer, TrainModule
from paceline.plugins import BUILT_IN_STRATEGIES
from paceline.strategies import STRATEGIES, Streamed, make_strategy
from paceline.strategies.options import CHOICES

WORDS = 32
TIED = "blocks.1.up.weight"


class Block(nn.Module):
    """A saved buffer that its forward writes, and one that no checkpoint has."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.empty(width), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        self.calls.zero_()
        self.scale.copy_(torch.linspace(0.5, 1.5, len(self.scale)))

    def forward(self, x, *, gain=1.0):
        self.calls += 1
        return x + gain * self.down(torch.tanh(self.up(self.norm(x)))) * self.scale


class Language(TrainModule):
    """A head that is tied to the embedding, a weight of two blocks, and a block that is used twice."""

    def __init__(self, width=16, depth=4, built=False):
        super().__init__()
        self.fails = False
        if built:
            self.build()

    def build(self):
        width, depth = self.hparams["width"], self.hparams["depth"]
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.blocks[1].up.weight = self.blocks[0].up.weight
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def configure_model(self):
        if not self.hparams["built"]:
            self.build()

    def logits(self, tokens):
        x = self.words(tokens)
        for block in [*self.blocks, self.blocks[2]]:
            x = block(x, gain=0.5)
        if self.fails:
            raise ArithmeticError("in a step")
        return self.head(x)

    def training_step(self, batch):
        return self.logits(batch[0]).logsumexp(-1).mean()

    def validation_step(self, batch):
        self.log("loss", self.training_step(batch))

    def predict_step(self, batch):
        return self.logits(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def batches():
    draw = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randint(WORDS, (6, 5), generator=draw)), batch_size=2)


def trainer(strategy="single", **settings):
    return Trainer(
        strategy=strategy, accelerator="cpu", devices=1, progress=False, run_dir=None, **settings
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A module, and the folders and files of its weights by kind."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    module = Language(built=True)
    settings = {"accelerator": "cpu", "devices": 1, "progress": False, "loggers": False}
    fitted = Trainer(max_steps=2, run_dir=folder, **settings)
    run = fitted.fit(module, batches())
    tensors = untied(module)
    write_in_files(tensors, folder / "theirs")
    save_file(tensors, folder / "alone.safetensors")
    checkpoint, exported = run.latest, folder / "exported"
    fitted.export(exported)
    write_in_parts(module.state_dict(), checkpoint, folder / "parts")
    kinds = {"checkpoint": checkpoint, "exported": exported, "parts": folder / "parts"}
    return module, kinds | {"index": folder / "theirs", "file": folder / "alone.safetensors"}


def untied(module):
    """As others save tied weights: once, under one of the names."""
    tensors = module.state_dict()
    return {name: value for name, value in tensors.items() if name not in ("head.weight", TIED)}


def write_in_files(tensors, folder):
    """A folder as those of large models on Hugging Face's hub."""
    folder.mkdir()
    names, weight_map = sorted(tensors), {}
    for number in (0, 1):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names[number::2]}, folder / file)
        weight_map |= dict.fromkeys(names[number::2], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_in_parts(tensors, like, folder):
    """A checkpoint as two ranks write it under ``fsdp``: each has half of the rows."""
    from paceline.trainer.checkpoint.files import commit
    from paceline.trainer.checkpoint.files import format as files
    from paceline.trainer.checkpoint.files.reading import read_manifest

    manifest = read_manifest(like)
    folder.mkdir()
    (folder / files.STATE).write_bytes((like / files.STATE).read_bytes())
    entries = {files.STATE: files.entry_of(folder / files.STATE)}
    for number in (0, 1):
        part, offsets = {}, {}
        for name, tensor in tensors.items():
            rows = tensor.shape[0] // 2 if tensor.ndim else 0
            if tensor.ndim or not number:
                cut = tensor[number * rows : (number + 1) * rows] if tensor.ndim else tensor
                part[f"model.{name}"] = cut.clone()
                offsets[f"model.{name}"] = {"saved_offsets": [number * rows] * min(tensor.ndim, 1)}
                offsets[f"model.{name}"]["saved_offsets"] += [0] * (tensor.ndim - 1)
        file = folder / f"model-{number + 1:05}-of-00002.safetensors"
        commit.save_tensors(part, file, {"DCP_SHARDING_INFO": json.dumps(offsets)})
        entries[file.name] = files.entry_of(file)
    commit.seal(folder, manifest, entries)


def same(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("keep", ["host", "disk"])
@pytest.mark.parametrize("kind", ["checkpoint", "exported", "parts", "index", "file"])
def test_predictions_are_those_of_single(trained, keep, kind):
    module, weights = trained
    expected = trainer().predict(module, batches())
    streamed = trainer(Streamed(keep=keep))
    found = streamed.predict(Language(), batches(), weights=weights[kind])
    assert same(found, expected)
    assert same(streamed.predict(Language(), batches(), weights=weights[kind]), expected)


@pytest.mark.parametrize("precision", ["bf16", "bf16-true"])
@pytest.mark.parametrize("keep", ["host", "disk"])
def test_predictions_are_those_of_single_in_16_bits(trained, keep, precision):
    _, weights = trained
    expected = trainer(precision=precision).predict(Language(), batches(), weights=weights["checkpoint"])
    found = trainer(Streamed(keep=keep), precision=precision).predict(
        Language(), batches(), weights=weights["checkpoint"]
    )
    assert same(found, expected)


def test_a_module_in_memory_needs_no_file(trained):
    module, _ = trained
    own = {name: id(tensor) for name, tensor in module.named_parameters(remove_duplicate=False)}
    before = trainer().predict(module, batches())
    streamed = trainer("streamed")
    assert same(streamed.predict(module, batches()), before)
    assert streamed.validate(module, batches()) == trainer().validate(module, batches())
    assert {n: id(t) for n, t in module.named_parameters(remove_duplicate=False)} == own
    assert same([module.predict_step(b) for b in batches()], before)


def test_afterwards_the_module_has_its_weights_under_host_and_none_under_disk(trained):
    module, weights = trained
    expected = trainer().predict(module, batches())
    on_host, on_disk = Language(), Language()
    trainer(Streamed()).predict(on_host, batches(), weights=weights["index"])
    assert same([on_host.predict_step(batch) for batch in batches()], expected)
    assert on_host.head.weight is on_host.words.weight
    trainer(Streamed(keep="disk")).predict(on_disk, batches(), weights=weights["index"])
    assert all(p.is_meta for p in on_disk.parameters())
    assert on_disk.head.weight is on_disk.words.weight
    assert not any("forward" in vars(part) for m in (on_host, on_disk) for part in m.modules())


@pytest.mark.parametrize("keep", ["host", "disk"])
def test_an_exception_in_a_step_leaves_a_module_that_can_be_used_again(trained, keep):
    module, weights = trained
    streamed, failing = trainer(Streamed(keep=keep)), Language()
    failing.fails = True
    with pytest.raises(ArithmeticError):
        streamed.predict(failing, batches(), weights=weights["checkpoint"])
    assert {p.is_meta for p in failing.parameters()} == {keep == "disk"}
    assert not any("forward" in vars(part) for part in failing.modules())
    failing.fails = False
    found = streamed.predict(failing, batches(), weights=weights["checkpoint"])
    assert same(found, trainer().predict(module, batches()))


@pytest.mark.parametrize("strategy", ["single", Streamed(), Streamed(keep="disk")])
def test_weights_of_a_part_serve_a_module_that_has_no_other(trained, strategy):
    """As a model of transformers within a module, whose file has no name for the tied head."""
    module, weights = trained

    class Outer(TrainModule):
        def configure_model(self):
            self.model = Language(built=True)

        def predict_step(self, batch):
            return self.model.predict_step(batch)

    found = trainer(strategy).predict(Outer(), batches(), weights=weights["index"])
    assert same(found, trainer().predict(module, batches()))


def test_compiled_blocks_are_streamed_too(trained):
    module, weights = trained
    settings = {"compile": {"backend": "eager", "blocks": True}}
    found = trainer(Streamed(keep="disk"), **settings).predict(
        Language(), batches(), weights=weights["checkpoint"]
    )
    assert same(found, trainer().predict(module, batches()))


def test_blocks_are_named_by_shard_units(trained):
    module, weights = trained

    class Chosen(Language):
        def shard_units(self):
            return [self.blocks[0], self.blocks[0].up, self.blocks[3]]

    found = trainer(Streamed(keep="disk")).predict(Chosen(), batches(), weights=weights["index"])
    assert same(found, trainer().predict(module, batches()))


# -- memory ----------------------------------------------------------------------------------------


class Deep(TrainModule):
    def __init__(self, width=128, depth=12):
        super().__init__()

    def configure_model(self):
        width = self.hparams["width"]
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
            for _ in range(self.hparams["depth"])
        )

    def predict_step(self, batch):
        x = self.first(batch[0])
        for block in self.blocks:
            x = block(x)
        return x.mean(1)


def rows():
    return DataLoader(TensorDataset(torch.ones(4, 8)), batch_size=2)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """The file of a deep module's weights, and the bytes of all of it, of a block, and of the rest."""
    module = Deep()
    module.configure_model()
    file = tmp_path_factory.mktemp("deep") / "deep.safetensors"
    save_file(module.state_dict(), file)
    block, rest = (sum(p.nbytes for p in part.parameters()) for part in (module.blocks[0], module.first))
    return file, rest + 12 * block, block, rest


@pytest.mark.parametrize("precision", ["32", "bf16-true"])
def test_on_disk_no_more_than_two_blocks_and_the_rest_are_in_memory(deep, tmp_path, precision):
    file, whole, block, rest = deep
    share = 1 if precision == "32" else 2
    activations = 2 * 3 * 2 * 128 * 4 + 4096
    found = {}
    for name, strategy in (("disk", Streamed(keep="disk")), ("single", "single")):
        predicting = trainer(strategy, precision=precision)
        found[name] = most_allocated(
            lambda predicting=predicting: predicting.predict(Deep(), rows(), weights=file),
            tmp_path / f"{name}.json",
        )
    assert found["single"] >= whole / share
    assert block / share <= found["disk"] <= (rest + 2 * block) / share + activations


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator")
@pytest.mark.parametrize("keep", ["host", "disk"])
def test_on_an_accelerator_no_more_than_two_blocks_are_there(keep, tmp_path):
    module, file = Deep(width=1024), tmp_path / "deep.safetensors"
    module.configure_model()
    save_file(module.state_dict(), file)
    block, first = (sum(p.nbytes for p in m.parameters()) for m in (module.blocks[0], module.first))
    settings = {"devices": 1, "progress": False, "run_dir": None}
    expected = Trainer(**settings).predict(Deep(width=1024), rows(), weights=file)
    gc.collect()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    streaming = Trainer(strategy=Streamed(keep=keep), **settings)
    found = streaming.predict(Deep(width=1024), rows(), weights=file)
    assert same(found, expected)
    slack = 16 << 20  # a matrix product's workspace
    assert torch.accelerator.max_memory_allocated() - before <= first + 2 * block + slack


# -- what is refused -------------------------------------------------------------------------------


def test_names_that_differ_are_reported(trained, tmp_path):
    tensors = untied(trained[0])
    tensors["blocks.2.upper.weight"] = tensors.pop("blocks.2.up.weight")
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(PacelineError) as error:
        trainer(Streamed(keep="disk")).predict(
            Language(), batches(), weights=tmp_path / "other.safetensors"
        )
    assert "missing in the checkpoint: blocks.2.up.weight" in str(error.value)
    assert "not in the model: blocks.2.upper.weight" in str(error.value)


def test_a_module_without_values_is_refused():
    with pytest.raises(PacelineError, match=r"nothing gave it values\n.*words.weight") as error:
        trainer("streamed").predict(Language(), batches())
    assert "weights=PATH" in str(error.value)


def test_a_module_in_memory_is_not_read_from_disk(trained):
    with pytest.raises(PacelineError, match=r"in memory already[\s\S]*configure_model"):
        trainer(Streamed(keep="disk")).predict(trained[0], batches())


def test_a_module_without_values_is_not_exported(trained, tmp_path):
    streamed = trainer(Streamed(keep="disk"))
    streamed.predict(Language(), batches(), weights=trained[1]["checkpoint"])
    with pytest.raises(PacelineError, match="no values to export"):
        streamed.export(tmp_path / "empty")


def test_a_module_without_blocks_is_refused():
    class Flat(TrainModule):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(8, 1)

        def predict_step(self, batch):
            return self.line(batch[0])

    with pytest.raises(PacelineError, match=r"no repeated blocks[\s\S]*shard_units"):
        trainer("streamed").predict(Flat(), rows())


def test_it_is_offered_for_nothing_that_trains():
    with pytest.raises(PacelineError, match=r"trains nothing[\s\S]*fsdp.*deepspeed_stage_3_offload"):
        trainer("streamed", max_steps=1).fit(Language(built=True), batches())
    assert "streamed" not in CHOICES
    assert "streamed" in STRATEGIES
    assert "streamed" in BUILT_IN_STRATEGIES
    with pytest.raises(PacelineError, match=r"computes on one device[\s\S]*fix: devices=1"):
        make_strategy("streamed", world_size=2)
    with pytest.raises(PacelineError, match="keep"):
        Streamed(keep="nvme")


def test_infinite_weights_stay_what_they_are(trained, tmp_path):
    """A file's own values, whatever they are: nothing is initialised in their place."""
    tensors = {name: torch.full_like(value, math.inf) for name, value in untied(trained[0]).items()}
    save_file(tensors, tmp_path / "inf.safetensors")
    found = trainer("streamed").predict(Language(), batches(), weights=tmp_path / "inf.safetensors")
    assert not any(output.isfinite().any() for output in found)
