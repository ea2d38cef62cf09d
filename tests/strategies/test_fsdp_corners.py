"""What sharding trips over: dtypes, ties, several forwards, frozen parts, wrong keys, unsaved buffers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.checkpoints import stored_tensors
from helpers.jobs import load_job
from helpers.messages import says
from helpers.one_device import assert_close, observed
from helpers.pairwise import soaked
from helpers.ranks import run_ranks
from safetensors.torch import load_file
from torch import nn

from paceline import PacelineError, Trainer
from paceline.strategies import DeepSpeed, Full, find_units, make_precision

pytestmark = pytest.mark.launch  # for its length

JOB = Path(__file__).with_name("fsdp_corners_job.py")
job = load_job(JOB)
REFUSED = ("mixed-own", "buffers-forgotten")
# float32 alone, or beside float64: sums are as exact as the coarser of the two.
TOLERANCES = {name: 1e-6 for name in job.CASES if name.startswith("mixed")} | {
    name: 0.01 for name in job.CASES if name.startswith("mixed-bf16")
}
NORMS = ["encoder.blocks.0.norm", "encoder.blocks.1.norm", "encoder.norm"]
BLOCKS = ["encoder.blocks.0", "encoder.blocks.1"]
TRAINED = [name for name in job.CASES if name not in REFUSED]
STOPPED = [name for name, case in (job.CASES | job.KEPT).items() if case.stops]
# Variations of what the others show, which run under --soak.
LONG = ("mixed-value", "mixed-hsdp", "mixed-bf16", "views", "buffers", "kept-ddp")


def usually(names: list[str]) -> list:
    """Cases as parameters of a test."""
    return soaked(names, [name for name in names if name not in LONG])


@pytest.fixture(scope="session")
def ranks(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corners")
    soak = request.config.getoption("--soak")
    names = [name for name in job.CASES | job.KEPT if soak or name not in LONG]
    run_ranks(JOB, 2, 2, folder, *names, folder=folder)
    return folder


@pytest.fixture(scope="session")
def seen(ranks):
    """What a rank saw of a case."""

    def of(name: str, rank: int = 0) -> dict:
        return torch.load(ranks / f"{name}.{rank}.pt", weights_only=False)

    return of


@pytest.fixture(scope="session")
def on_one_device(tmp_path_factory):
    return observed(job, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("name", usually(TRAINED))
def test_equals_one_device(seen, on_one_device, name):
    expected = on_one_device(name)
    assert expected["error"] is None
    for rank in (0, 1):
        found = seen(name, rank)
        assert found["error"] is None
        assert_close(found["seen"]["first"], expected["seen"]["first"], 0)
        assert_close(found["weights"], expected["weights"], TOLERANCES.get(name, 1e-12))
        assert_close(found["buffers"], expected["buffers"], 0)
    trained = [
        n for n, t in expected["weights"].items() if not torch.equal(t, expected["seen"]["first"][n])
    ]
    assert len(trained) >= 8


@pytest.mark.parametrize("name", usually(STOPPED))
def test_a_run_that_was_stopped_and_resumed_is_the_same_to_the_bit(seen, name):
    for rank in (0, 1):
        found = seen(name, rank)
        assert found["error"] is None
        assert found["resumed at"] == job.STOP
        assert_close(found["resumed"], found["weights"], 0)
        assert_close(found["resumed buffers"], found["buffers"], 0)
        assert found["resumed moments"] == found["seen"]["moments"]


# -- dtypes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("mixed", sorted([*BLOCKS, *NORMS])),
        (
            "mixed-inner",
            sorted([*BLOCKS, *(f"scaled.{i}{rest}" for i in (0, 1) for rest in ("", ".line"))]),
        ),
        ("mixed-tied", [*BLOCKS, "encoder.norm"]),
        ("mixed-frozen", BLOCKS),  # frozen parameters are gathered with others, whatever their dtype
        ("kept-fsdp", sorted([*BLOCKS, *NORMS])),
        ("tied", BLOCKS),
        ("no-split", ["encoder.blocks.0.one", "encoder.blocks.0.other"]),
    ],
)
def test_what_is_sharded_together(seen, name, units):
    found = seen(name)["seen"]
    assert sorted(found["units"]) == units
    assert found["whole"] == []


@pytest.mark.parametrize("name", usually(["mixed", "mixed-bf16"]))
def test_parameters_moments_and_files_keep_the_dtypes_of_the_module(seen, name):
    found = seen(name)
    rest = torch.bfloat16 if "bf16" in name else torch.float64
    stored = stored_tensors(Path(found["latest"]))
    for parameter, value in found["weights"].items():
        expected = torch.float32 if ".norm." in parameter or "norm.weight" in parameter else rest
        assert value.dtype == stored[f"model.{parameter}"].dtype == expected, parameter
        assert found["seen"]["moments"][parameter] == expected, parameter


def test_gradients_of_16_bit_parts_are_summed_in_float32_as_under_ddp(seen):
    """The module has them by itself, under precision 32; in bfloat16 sums are rounded otherwise."""
    assert_close(seen("mixed-bf16-sums")["weights"], seen("mixed-bf16-sums-ddp")["weights"], 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_dtypes_that_cannot_be_apart_are_refused_by_name(seen, rank):
    error = seen("mixed-own", rank)["error"]
    says(error, "encoder.blocks.0.shift (float32), encoder.blocks.0.gain (float64)", "one dtype")
    assert not error.startswith("<class")


# -- norms in float32 --------------------------------------------------------------------------


@pytest.mark.parametrize("name", usually(list(job.KEPT)))
def test_norms_stay_float32_beside_bfloat16(seen, on_one_device, name):
    found, expected = seen(name), on_one_device(name)
    assert expected["error"] is None
    assert found["error"] is None
    for parameter, value in found["weights"].items():
        is_norm = "norm" in parameter
        assert value.dtype == (torch.float32 if is_norm else torch.bfloat16), parameter
        assert not is_norm or not torch.equal(value, value.bfloat16().float()), parameter
    initial = found["seen"]["first"]["encoder.norm.weight"]
    assert torch.equal(initial, torch.linspace(0.7, 1.3, job.WIDTH))  # never rounded
    assert_within_rounding(found["weights"], expected["weights"], on_one_device("whole")["weights"])


def assert_within_rounding(found: dict, expected: dict, exact: dict) -> None:
    """No further from one device than bfloat16 has come from float64 there."""
    rounding = max((expected[name].double() - exact[name]).abs().max().item() for name in exact)
    apart = max((found[name].double() - expected[name].double()).abs().max().item() for name in exact)
    assert 0 < apart <= rounding


def test_kept_classes_are_given_by_class_or_name():
    def dtypes(keep: list) -> dict[str, torch.dtype]:
        module = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.BatchNorm1d(2))
        Full("bf16-true", keep_fp32=keep).convert_module(module)
        return {name: tensor.dtype for name, tensor in module.state_dict().items()}

    by_class, by_name = dtypes([nn.LayerNorm, nn.BatchNorm1d]), dtypes(["LayerNorm", "BatchNorm1d"])
    assert by_class == by_name
    assert {n for n, dtype in by_class.items() if dtype == torch.bfloat16} == {"0.weight", "0.bias"}
    assert by_class["2.running_mean"] == torch.float32
    assert by_class["2.num_batches_tracked"] == torch.int64
    assert {dtype for n, dtype in dtypes([]).items() if "tracked" not in n} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "bf16-true", "keep_fp32": "LayerNorm"}, "a list of classes"),
        ({"name": "bf16-true", "keep_fp32": nn.LayerNorm}, "a list of classes"),
        ({"name": "bf16-true", "keep_fp32": [3]}, "a list of classes"),
        ({"name": "64", "keep_fp32": ["LayerNorm"]}, "16-bit"),
        ({"name": "bf16-tru"}, "did you mean: bf16-true"),
    ],
)
def test_wrong_arguments_of_a_precision(arguments, said):
    with pytest.raises(PacelineError) as refused:
        Full(**arguments)
    assert said in str(refused.value)


def test_a_class_that_the_module_does_not_have_is_refused():
    precision = Full("bf16-true", keep_fp32=[job.Norm, "LayerNrom"])
    trainer = Trainer(precision=precision, accelerator="cpu", run_dir=None, progress=False)
    with pytest.raises(PacelineError, match="no part") as refused:
        trainer.fit(job.Base(), [job.data()[:4]])
    assert "LayerNrom" in str(refused.value)


def test_deepspeed_has_no_parameters_of_two_dtypes():
    with pytest.raises(PacelineError, match="keep_fp32"):
        Trainer(strategy=DeepSpeed(1), precision=job.kept_norms(), accelerator="cpu").validate(job.Base())


@pytest.mark.parametrize("name", ["bf16-true", "64"])
def test_complex_buffers_keep_their_imaginary_part(name):
    module = nn.Linear(2, 2)
    module.register_buffer("turns", torch.tensor([1 + 2j]))
    make_precision(name).convert_module(module)
    assert module.turns.tolist() == [1 + 2j]


# -- ties --------------------------------------------------------------------------------------


def test_a_head_that_is_the_embedding_stays_it(ranks, seen):
    found = seen("tied")
    assert found["ties"]
    expected = found["weights"]["encoder.words.weight"]
    assert torch.equal(found["weights"]["head.weight"], expected)
    stored = stored_tensors(Path(found["latest"]))
    assert torch.equal(stored["model.encoder.words.weight"], expected)
    module = job.Tied.load_from_checkpoint(found["latest"])
    assert module.head.weight is module.encoder.words.weight
    assert torch.equal(module.head.weight, expected.float())


def test_an_export_of_tied_weights_has_them_once_and_is_read_again(ranks, seen):
    found = seen("tied")
    exported = load_file(ranks / "tied-exported" / "model.safetensors")
    assert "head.weight" not in exported
    assert torch.equal(exported["encoder.words.weight"], found["weights"]["encoder.words.weight"])
    assert_close(found["read again"], found["weights"], 0)
    module = job.Tied.load_from_checkpoint(ranks / "tied-exported")
    assert torch.equal(module.head.weight, exported["encoder.words.weight"].float())


# -- frozen parts ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["low-rank", "mixed-frozen"])
def test_frozen_parameters_have_no_state_and_do_not_change(seen, name):
    found = seen(name)
    trained = sorted(n for n in found["weights"] if ".down." in n or ".up." in n)
    assert len(trained) == 8
    assert sorted(found["seen"]["moments"]) == trained
    stored = stored_tensors(Path(found["latest"]))
    moments = {n.removeprefix("optim.0.").rpartition(".")[0] for n in stored if n.startswith("optim.")}
    assert sorted(moments) == trained
    for parameter, value in found["weights"].items():
        assert torch.equal(value, found["seen"]["first"][parameter]) == (parameter not in trained)


def test_gradients_of_the_trained_part_are_clipped_as_on_one_device(seen, on_one_device):
    norms, expected = seen("low-rank")["norms"], on_one_device("low-rank")["norms"]
    assert norms == pytest.approx(expected, rel=1e-12)
    assert max(norms) > 0.05  # else nothing was clipped


def test_a_frozen_teacher_follows_its_student_shard_by_shard(seen):
    found = seen("followed")
    teachers = [n for n in found["weights"] if n.startswith("teacher.")]
    assert all(not torch.equal(found["weights"][n], found["seen"]["first"][n]) for n in teachers)


# -- whole weights by key ----------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_whole_weights_go_to_their_own_keys_in_any_order(seen, rank):
    found = seen("whole", rank)
    assert found["error"] is None
    for read in found["read"]:
        assert_close(read, found["given"], 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_keys_that_are_missing_or_unexpected_are_named(seen, rank):
    from_a_file, kept, given, _ = seen("whole", rank)["refused"]
    for error in (from_a_file, given):
        says(error, "encoder.blocks.1.inner.weight", "encoder.blocks.7.inner.weight")
    assert kept  # from a file; torch itself loads what it can, and then raises


# -- buffers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", usually(["buffers", "buffers-late"]))
def test_buffers_that_are_in_no_checkpoint_have_their_values_on_every_rank(seen, name):
    expected = dict(job.Buffers().named_buffers())
    for rank in (0, 1):
        found = seen(name, rank)
        for buffers in (found["buffers"], found.get("resumed buffers", found["buffers"])):
            for key, value in expected.items():
                buffer = buffers[f"turning.1.{key}"]
                assert buffer.device.type == "cpu"
                assert torch.equal(buffer, value.double() if key == "angles" else value), key
    stored = stored_tensors(Path(seen(name)["latest"]))
    assert not any(key in stored_name for stored_name in stored for key in expected)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_buffer_that_nobody_fills_is_named(seen, rank):
    error = seen("buffers-forgotten", rank)["error"]
    says(error, "forgotten.reset_parameters() does not fill angles", "Forgotten.reset_parameters(self)")


# -- classes that a model names ----------------------------------------------------------------


def test_repeated_blocks_win_over_named_classes():
    module = job.Pretrained()
    module.blocks = nn.ModuleList(job.Block() for _ in range(2))
    assert find_units(module) == [*module.blocks]


def test_an_outer_class_wins_over_one_inside_it_and_names_may_be_absent():
    module = job.Pretrained()
    module.one.inner = nn.Sequential(job.Layer())
    assert find_units(module) == [module.one, module.other]
    module._no_split_modules = None  # as some models have it
    assert find_units(module) == []


def test_a_model_of_transformers_is_sharded_by_the_classes_it_names():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 32}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=1, **sizes))
    assert find_units(model) == [model.model.layers[0]]
