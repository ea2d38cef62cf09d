"""Every option of every strategy: it trains what one device trains, and the module comes back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job
from helpers.one_device import assert_close, observed
from helpers.pairwise import soaked
from helpers.ranks import Outcome, run_ranks

from paceline.strategies import Single

pytestmark = pytest.mark.launch  # for its length
JOB = Path(__file__).with_name("options_job.py")
SECONDS = 180
job = load_job(JOB)
# Within how much of one device a case ends; the others differ on purpose or are refused.
ROUNDED = {"fsdp-bf16-parameters": 0.02, **{f"zero-{s}-bf16-true": 0.02 for s in range(4)}}
APART = ["ddp-batchnorm-apart", "ddp-batchnorm-own", "fsdp-batchnorm-apart"]
REFUSED = [*job.refused_by_torch(), "fsdp-manual-tied"]
REFUSED_BY_DEEPSPEED = ["zero-2-conflicting", "zero-2-scalar", "zero-3-late-ignorant"]
REFUSED_BY_DEEPSPEED += ["zero-3-compiled", "zero-2-offload-bf16-true"]
TRAINED = [
    name
    for name in job.ON_TORCH | job.ON_DEEPSPEED
    if name not in [*REFUSED, *REFUSED_BY_DEEPSPEED, *APART]
]
# Variations of what the others show, which run under --soak.
LONG = [f"ddp-{n}" for n in ("first-step-rank-zero", "searching", "unused", "never-searching", "twice")]
LONG += [f"ddp-{n}" for n in ("manual", "batchnorm-cumulative", "batchnorm-no-affine", "late-tied")]
LONG += [f"fsdp-{n}" for n in ("reshard-true", "units-names", "units-outer-first", "units-twice")]
LONG += [f"fsdp-{n}" for n in ("in-sequence", "no-blocks", "twice", "recompute", "batchnorm-apart")]
LONG += ["fsdp-late-tied-bias", "ddp-late-ignorant", "hsdp-one-group", "hsdp-late"]
LONG += ["zero-0-frozen", "zero-0-bf16-true", "zero-1-frozen", "zero-1-offload"]
LONG += [
    f"zero-2-{n}" for n in ("frozen", "bf16-true", "offload", "recompute", "twice", "late", "late-tied")
]
LONG += ["zero-3-bf16-true", "zero-3-twice", "zero-3-late-tied-bias"]
assert set(LONG) <= job.CASES.keys()


def usually(every: list) -> list:
    """Names of cases, or tuples that begin with one, as parameters of a test."""
    return soaked(every, [one for one in every if (one[0] if isinstance(one, tuple) else one) not in LONG])


WHOLE = [n for n in TRAINED if n.startswith(("ddp", "zero-0", "zero-1", "zero-2"))]
LATE = [name for name in TRAINED if "-late" in name]


@pytest.fixture(scope="session")
def seen(request, tmp_path_factory):
    """What a rank saw of a case. Each kind of cases runs once, on two ranks, in a job of its own."""
    folders: dict[str, Path] = {}
    outcomes: dict[str, Outcome] = {}
    loaded: dict[Path, dict] = {}

    def of(name: str, rank: int = 0) -> dict:
        kind = "deepspeed" if name in job.ON_DEEPSPEED else "torch"
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            every = job.ON_DEEPSPEED if kind == "deepspeed" else job.ON_TORCH
            left_out = [] if request.config.getoption("--soak") else LONG
            names = [name for name in every if name not in left_out]
            outcomes[kind] = run_job(folders[kind], 2, names)
        written = folders[kind] / f"{name}.{rank}.pt"
        assert written.exists(), f"{name} did not end: {outcomes[kind].output}"
        if written not in loaded:
            loaded[written] = torch.load(written, weights_only=False)
        return loaded[written]

    return of


def run_job(folder: Path, devices: int, names: list[str]) -> Outcome:
    """Run cases, which may end with an error or not at all."""
    return run_ranks(JOB, devices, devices, folder, *names, folder=folder, seconds=SECONDS, check=False)


@pytest.fixture(scope="session")
def on_one_device(tmp_path_factory):
    return observed(job, tmp_path_factory.mktemp("one"), job.apart_from_strategy)


def tolerance_of(name: str) -> float:
    return ROUNDED.get(name, 1e-6 if name in job.ON_DEEPSPEED else 1e-12)


@pytest.mark.parametrize("name", usually(TRAINED))
def test_equals_one_device(seen, on_one_device, name):
    found, expected = seen(name), on_one_device(name)
    assert found["error"] is None
    assert expected["error"] is None
    assert_close(found["weights"], expected["weights"], tolerance_of(name))
    moved = [n for n, t in expected["weights"].items() if not torch.equal(t, expected["first"][n])]
    assert len(moved) > 3
    if name not in ROUNDED:
        assert_close(found["first"], expected["first"], 0)


@pytest.mark.parametrize("name", usually(TRAINED))
def test_the_module_keeps_its_class_and_its_names(seen, on_one_device, name):
    found = seen(name)
    before = (on_one_device(name) if name in LATE else found)["before" if name not in LATE else "after"]
    kind = job.CASES[name].model.__qualname__
    assert (found["seen"]["class"], found["after"]["classes"][""]) == (kind, kind)
    assert found["seen"]["modules"] == found["after"]["modules"] == before["modules"]
    assert found["seen"]["parameters"] == found["after"]["parameters"] == before["parameters"]
    assert found["keys"] == found["after"]["keys"] == before["keys"]
    assert found["after"]["own forward"] == []
    if "fsdp" not in name and "hsdp" not in name:
        assert found["after"]["classes"] == before["classes"]


@pytest.mark.parametrize("name", usually(WHOLE))
def test_after_a_run_that_leaves_parameters_whole_the_module_is_plain(seen, name):
    """It can be copied, pickled, and used with autograd."""
    assert (seen(name, 0)["plain"], seen(name, 1)["plain"]) == ("yes", "yes")


# -- ddp: unused parameters --------------------------------------------------------------------


@pytest.mark.parametrize("name", usually(["ddp-unused", "ddp-unused-accumulate"]))
def test_ddp_names_unused_parameters_once(seen, name):
    lines = [line for line in seen(name)["log"].splitlines() if "no gradient" in line]
    assert len(lines) == 1
    assert "3 parameters get no gradient in step 1" in lines[0]
    for unused in ("nor_this", "never.weight", "never.bias"):
        assert unused in lines[0]


@pytest.mark.parametrize("name", usually(["ddp-first-step-one-rank", "ddp-first-step-rank-zero"]))
def test_ddp_does_not_call_unused_what_one_rank_uses(seen, name):
    assert "no gradient" not in seen(name)["log"]


def test_ddp_continues_as_in_step_1_where_that_step_left_parameters_out(seen):
    assert "extra.weight, extra.bias" in seen("ddp-first-step-none")["log"]


@pytest.mark.parametrize("rank", [0, 1])
def test_ddp_stops_at_the_step_that_leaves_a_parameter_out_before_the_update(seen, rank):
    found = seen("ddp-later-unused", rank)
    assert "2 parameters get no gradient in this step" in found["error"]
    assert "extra.weight, extra.bias" in found["error"]
    assert "find_unused_parameters=True" in found["error"]
    assert found["steps"] == 3  # the fourth is the one without
    assert found["changed"] == []


def test_ddp_names_what_only_an_earlier_micro_batch_used(seen):
    """It trains right, or it is an error that names the parameter."""
    found = seen("ddp-not-in-the-last")
    if found["error"] is not None:
        assert "extra.weight" in found["error"]
        assert found["changed"] == []


def test_ddp_ends_the_job_with_the_name_when_one_rank_leaves_a_parameter_out(tmp_path):
    ended = run_job(tmp_path, 2, ["ddp-later-one-rank"])
    assert not ended.timed_out, "it hangs"
    assert set(ended.codes) != {0}
    assert "2 parameters get no gradient in this step" in ended.stdout + ended.stderr
    assert "extra.weight, extra.bias" in ended.stdout + ended.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_ddp_refuses_a_static_graph_with_accumulation(seen, rank):
    found = seen("ddp-static-accumulate", rank)
    assert "a static graph excludes accumulation" in found["error"]
    assert (found["steps"], found["changed"]) == (0, [])


# -- fsdp: units -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "units"),
    usually(
        [
            ("fsdp-units-names", ["blocks.0", "deep.inner"]),
            ("fsdp-units-mixed", ["first", "blocks.1", "deep.inner"]),
            ("fsdp-units-inner-first", ["deep", "deep.inner"]),
            ("fsdp-units-outer-first", ["deep", "deep.inner"]),
            ("fsdp-units-twice", ["blocks.0"]),
            ("fsdp-units-none", []),
            ("fsdp-reshard-none", ["blocks.0", "blocks.1", "blocks.2"]),
            ("fsdp-in-sequence", ["blocks.1", "blocks.3"]),
            ("fsdp-nested", ["blocks.0", "blocks.1"]),
            ("fsdp-no-blocks", []),
            ("fsdp-tied-units", ["blocks.1"]),
            ("fsdp-shared-block", []),
            ("fsdp-manual", ["one", "one.1", "one.2", "two"]),
            ("fsdp-late", ["blocks.0", "blocks.1", "blocks.2"]),
        ]
    ),
)
def test_fsdp_shards_by_these_units(seen, name, units):
    assert seen(name)["seen"].get("units") == units


@pytest.mark.parametrize("name", usually([f"fsdp-reshard-{n}" for n in ("none", "true", "false")]))
def test_fsdp_computes_the_same_whenever_it_reshards(seen, name):
    assert_close(seen(name)["weights"], seen("fsdp-reshard-none")["weights"], 0)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("name", "said"),
    usually(
        [
            ("fsdp-units-wrong", ["shard_units()", "deep.nothing"]),
            ("fsdp-units-foreign", ["shard_units()", "in_features=2"]),
            ("fsdp-scalar", ["temperature", "without a dimension", "shape (1,)"]),
            ("fsdp-manual-direct", ["manual optimization", "gain"]),
            ("fsdp-manual-tied", ["manual optimization", "share"]),
            ("fsdp-late-ignorant", ["blocks.1.odd", "reset_parameters"]),
            ("ddp-late-ignorant", ["blocks.1.odd", "reset_parameters"]),
            ("hsdp-three-groups", ["2 ranks into 3 groups", "replicate"]),
            ("ddp-recompute-no-blocks", ["activation_checkpointing", "def shard_units(self)"]),
            ("zero-2-scalar", ["temperature", "without a dimension", "shape (1,)"]),
            ("zero-3-late-ignorant", ["blocks.1.odd", "reset_parameters"]),
            ("zero-3-compiled", ["torch.compile(part)", "self.blocks.1", "self.blocks.1.compile()"]),
            ("zero-2-offload-bf16-true", ["bf16-true", "DeepSpeedCPUAdam", "precision='bf16'"]),
            (
                "zero-2-conflicting",
                ["train_batch_size is 64", "16", "gradient_accumulation_steps is 3", "1"],
            ),
        ]
    ),
)
def test_it_is_refused_on_every_rank(seen, name, said, rank):
    error = seen(name, rank)["error"]
    assert error is not None
    assert not error.startswith("<class"), error  # a PacelineError
    assert [part for part in said if part not in error] == []
    assert seen(name, rank)["calls"] == []


# -- activation checkpointing ------------------------------------------------------------------


@pytest.mark.parametrize("name", usually([f"{s}-recompute" for s in ("ddp", "fsdp", "zero-2", "zero-3")]))
def test_recomputation_runs_each_block_twice_in_a_step(seen, on_one_device, name):
    assert set(seen(name)["calls"]) == {6}
    assert set(on_one_device(name)["calls"]) == {3}


def test_recomputation_continues_in_a_second_fit_of_a_sharded_module(seen):
    assert set(seen("fsdp-recompute-twice")["calls"]) == {6}


# -- batch norms -------------------------------------------------------------------------------

SYNCED = [n for n in TRAINED if "-batchnorm" in n]


@pytest.mark.parametrize("name", usually(SYNCED))
def test_synchronised_batch_norms_are_the_users_own_class_again(seen, name):
    for rank in (0, 1):
        classes = seen(name, rank)["after"]["classes"]
        assert (classes["norm"], classes["norm2"]) == ("BatchNorm1d", "BatchNorm2d")


@pytest.mark.parametrize("name", usually(SYNCED))
def test_synchronised_running_statistics_equal_one_device_on_every_rank(seen, on_one_device, name):
    for rank in (0, 1):
        assert_close(seen(name, rank)["buffers"], on_one_device(name)["buffers"], 1e-12)


@pytest.mark.parametrize("name", usually(APART))
def test_without_synchronisation_rank_zero_s_running_statistics_are_the_run_s(seen, on_one_device, name):
    first, second = seen(name, 0), seen(name, 1)
    means = [rank["buffers before validation"]["norm.running_mean"] for rank in (first, second)]
    assert not torch.equal(*means)
    assert_close(first["buffers"], first["buffers before validation"], 0)
    assert_close(second["buffers"], first["buffers"], 0)
    one = on_one_device(name)["buffers"]["norm.running_mean"]
    assert (one - first["buffers"]["norm.running_mean"]).abs().max() > 1e-3  # else it shows nothing


def test_running_statistics_are_rank_zero_s_whether_or_not_each_step_broadcasts_them(seen):
    usual, own = seen("ddp-batchnorm-apart", 1)["buffers"], seen("ddp-batchnorm-own", 1)["buffers"]
    assert_close(own, usual, 1e-12)


# -- configure_model ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", usually(LATE))
def test_configure_model_runs_once_on_meta_however_often_the_module_is_fit(seen, name):
    for rank in (0, 1):
        assert seen(name, rank)["seen"]["built on"] == ["meta"]


@pytest.mark.parametrize("name", ["ddp-late", "fsdp-late", "zero-3-late"])
def test_parts_of_one_kind_get_values_of_their_own(seen, name):
    first, second = (seen(name)["first"][f"blocks.{i}.inner.weight"] for i in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", usually([n for n in LATE if "tied" in n]))
def test_tied_parameters_stay_tied(seen, name):
    assert seen(name)["ties"][-2:] == [1, 2]


@pytest.mark.parametrize(
    "name", usually(["ddp-late", "fsdp-late", "hsdp-late", "zero-2-late", "zero-3-late"])
)
def test_buffers_built_on_meta_have_their_values(seen, name):
    for rank in (0, 1):
        buffers = seen(name, rank)["buffers"]
        assert set(buffers["table.offsets"].tolist()) == {0.25}
        assert set(buffers["table.hidden"].tolist()) == {2.0}
    assert "table.hidden" not in seen(name)["keys"]


@pytest.mark.parametrize("name", ["ddp-late", "fsdp-late", "zero-3-late"])
def test_a_module_of_configure_model_is_built_from_a_checkpoint(seen, name):
    found = seen(name)
    module = job.Late.load_from_checkpoint(found["folder"])
    assert_close(module.state_dict(), {n: t.float() for n, t in found["weights"].items()}, 0)
    assert set(module.table.hidden.tolist()) == {2.0}  # a buffer that is in no checkpoint


def test_recomputation_reaches_the_blocks_of_configure_model(tmp_path):
    case = job.CASES["ddp-late"]
    job.CASES["late-recompute"] = job.Case(case.model, case.strategy)
    found = job.observe("late-recompute", 1, tmp_path, Single(activation_checkpointing=True))
    assert set(found["calls"]) == {6}


# -- DeepSpeed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", soaked(range(4), [0]))
def test_deepspeed_never_applies_its_own_default_clipping(seen, on_one_device, stage, monkeypatch):
    """These gradients are far over a norm of 1, and the weights equal those of one device above."""
    norms: list[float] = []
    watch = lambda self, trainer, optimizer: norms.append(norm_of(optimizer))
    monkeypatch.setattr(job.Watch, "on_before_optimizer_step", watch, raising=False)
    case = job.CASES[f"zero-{stage}"]
    job.CASES["watched"] = job.Case(case.model, case.strategy, case.options, case.trainer)
    job.observe("watched", 1, Path("norms"), Single())
    assert min(norms[:3]) > 2


def norm_of(optimizer: torch.optim.Optimizer) -> float:
    gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients).item()
