"""What the strategy uses of DeepSpeed without a public name is there, by name."""

import inspect
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

MODULES = {
    "engine": "deepspeed.runtime.engine",
    "stages 1 and 2": "deepspeed.runtime.zero.stage_1_and_2",
    "stage 3": "deepspeed.runtime.zero.stage3",
    "offload": "deepspeed.runtime.zero.parameter_offload",
    "partition": "deepspeed.runtime.zero.partition_parameters",
    "linkage": "deepspeed.utils.mixed_precision_linkage",
    "fragment": "deepspeed.utils.tensor_fragment",
}
# Attributes of objects that exist inside a run only: the module that sets them says so.
NAMES = {
    "engine": ["clip_fp32_gradients", "gradient_clipping"],
    "stages 1 and 2": [
        "unscale_and_clip_grads",
        "clear_backward_seen_flag",
        "check_overflow",
        "check_grad_overflow",
        "all_grad_tensors",
        "finalize_gradient_accumulation_boundary",
        "clip_grad",
        "bit16_groups",
        "single_partition_of_fp32_groups",
        "parallel_partitioned_bit16_groups",
        "real_dp_process_group",
        "_hp_optimizer_states_linked",
    ],
    "stage 3": [
        "unscale_and_clip_grads",
        "clear_backward_seen_flag",
        "fp32_partitioned_groups_flat",
        "fp16_partitioned_groups_flat",
        "persistent_parameters",
        "grad_partitions_flat_buffer",
        "fp16_groups",
        "clip_grad",
        "_overflow_check_and_loss_scale_update",
        "parameter_offload",
        "grad_position",
        "_swappable_optimizer_subgroup",
        "_optimizer_states_and_gradient_swap_in",
        "_optimizer_states_and_gradient_swap_out",
    ],
    "offload": [
        "ZeROOrderedDict",
        "FWD_MODULE_STACK",
        "pre_bwd_fn",
        "post_bwd_fn",
        "applied_pre_backward_ref_cnt",
        "_original_parameters",
    ],
    "partition": [
        "ds_id",
        "ds_status",
        "ds_tensor",
        "ds_zero_partition_rank",
        "ds_zero_partition_world_size",
        "ds_process_group",
        "ds_numel",
        "ds_shape",
        "_external_params",
    ],
    "linkage": ["_hp_mapping"],
    "fragment": ["set_optim_state_fragment", "hp_fragment_address", "lp_fragment_address"],
}


@pytest.fixture(scope="module")
def sources():
    pytest.importorskip("deepspeed")
    return {name: inspect.getsource(import_module(path)) for name, path in MODULES.items()}


@pytest.mark.parametrize(("where", "name"), [(where, name) for where in NAMES for name in NAMES[where]])
def test_deepspeed_has(sources, where, name):
    assert name in sources[where]


def test_its_own_kernels_can_be_switched_off():
    deepspeed = pytest.importorskip("deepspeed")
    assert "deepspeed_shm_comm" in deepspeed.ops.__compatible_ops__


ROOT = Path(__file__).parents[2]


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_what_is_pinned_is_installed_and_within_what_is_promised():
    """What is tested by ``make test-oldest`` is the lowest version promised."""
    promised = {}
    for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        requirement = Requirement(text)
        promised[requirement.name] = requirement.specifier
    files = [pinned(f"constraints{which}.txt") for which in ("", "-oldest", "-newest")]
    for name in ("torch", "deepspeed"):
        versions = [file[name] for file in files]
        assert Version(metadata.version(name)).base_version in versions
        assert all(promised[name].contains(version) for version in versions)
        assert Version(versions[1]) <= Version(versions[0]) <= Version(versions[2])
        lowest = next(one.version for one in promised[name] if one.operator == ">=")
        assert versions[1].startswith(lowest)
    assert not promised["deepspeed"].contains("0.20")
