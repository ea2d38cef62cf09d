"""What is used of torch without a public name exists, by name, and does what is needed of it."""

import inspect
import time

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, default_collate, get_worker_info

from paceline.strategies import torch_internals as internals
from paceline.strategies.launch.environment import Environment
from paceline.strategies.launch.process_group import join


@pytest.fixture
def group():
    if torch.distributed.is_initialized():
        yield
        return
    join(Environment(torch.device("cpu")))
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["_amp_foreach_non_finite_check_and_unscale_", "_foreach_mul_"])
def test_torch_has(name):
    assert hasattr(torch, name)


def test_buffers_of_a_module_are_those_that_are_none_too():
    module = nn.Sequential(nn.BatchNorm1d(2))
    module.register_buffer("none", None)
    module.register_buffer("some", torch.ones(2))
    assert list(internals.buffers_of(module)) == ["none", "some"]
    assert internals.buffers_of(module)["some"] is module.some


def test_a_write_in_place_counts():
    tensors = [torch.ones(2), nn.Parameter(torch.ones(2))]
    before = internals.writes_to(tensors)
    _ = tensors[1] * 2
    assert internals.writes_to(tensors) == before
    with torch.no_grad():
        tensors[1][0] = 3.0
    assert internals.writes_to(tensors)[0] == before[0]
    assert internals.writes_to(tensors)[1] > before[1]


@pytest.mark.parametrize("values", [[1.0, -2.0], [1.0, float("nan")], [float("-inf"), 0.0]])
def test_check_and_multiply_finds_and_changes_nothing(values):
    gradient, found = torch.tensor(values), torch.zeros(())
    internals.check_and_multiply([gradient, torch.ones(3)], found, torch.ones(()))
    assert found.item() == (not torch.tensor(values).isfinite().all())
    assert torch.equal(gradient, torch.tensor(values)) or gradient.isnan().any()


def test_multiply_each_takes_a_tensor():
    values = [torch.ones(2), torch.ones(3)]
    internals.multiply_each(values, torch.tensor(0.5))
    assert [v.tolist() for v in values] == [[0.5] * 2, [0.5] * 3]


def test_the_reducer_of_ddp_has_prepare_for_backward_and_rebuild_buckets(group):
    wrapped = DistributedDataParallel(nn.Linear(2, 2))
    assert hasattr(wrapped.reducer, "prepare_for_backward")
    assert hasattr(wrapped.reducer, "_rebuild_buckets")
    internals.expect_every_gradient(wrapped)
    sum((p * 0).sum() for p in wrapped.parameters()).backward()
    internals.rebuild_buckets(wrapped)
    internals.expect_every_gradient(wrapped)
    (wrapped.module.weight * 0).sum().backward()
    with pytest.raises(RuntimeError, match=r"finished reduction(.|\n)*did not receive grad for rank 0: \d"):
        internals.rebuild_buckets(wrapped)


def test_an_fsdp_module_has_its_state_groups_and_gradients(group):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    fully_shard(module[0])
    fully_shard(module)
    assert isinstance(module, FSDPModule)
    state = module._get_fsdp_state()
    assert hasattr(state, "_is_root")
    (parameters,) = [group.fsdp_params for group in internals._parameter_groups(state)]
    module.set_requires_gradient_sync(False)
    module(torch.ones(1, 2)).sum().backward()
    kept = [
        p.unsharded_accumulated_grad is not None or p._unsharded_param.grad is not None for p in parameters
    ]
    assert all(kept)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            internals.forget_gradients(part)
            internals.end_iteration(part)
    assert all(p.unsharded_accumulated_grad is None for p in parameters)
    assert all(p._unsharded_param.grad is None for p in parameters)
    module.set_requires_gradient_sync(True)
    module(torch.ones(1, 2)).sum().backward()
    assert module[1].bias.grad.full_tensor().tolist() == [1, 1]  # one backward's, not two


# -- DataLoader ----------------------------------------------------------------------------------


def test_the_table_s_entry_for_tensors_is_torch_s_own():
    assert internals.collate_table[torch.Tensor] is internals.collate_tensors


def test_default_collate_reads_the_table(monkeypatch):
    def stack(batch, *, collate_fn_map=None):
        return "ours"

    monkeypatch.setitem(internals.collate_table, torch.Tensor, stack)
    assert default_collate([torch.ones(1), torch.ones(1)]) == "ours"


def test_a_loader_without_its_iterator_starts_other_workers():
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
    first = iter(loader)
    assert iter(loader) is first  # _iterator
    internals.drop_iterator(loader)
    assert iter(loader) is not first
    internals.drop_iterator(loader)


def test_get_worker_info_returns_what_was_set():
    try:
        internals.set_worker_info("ours")
        assert get_worker_info() == "ours"  # _worker_info
    finally:
        internals.set_worker_info(None)


# -- torch.compile, memory -----------------------------------------------------------------------


def test_a_module_is_compiled_once_compile_was_called():
    module = nn.Linear(1, 1)
    assert not internals.is_compiled(module)
    module.compile()
    assert internals.is_compiled(module)  # _compiled_call_impl


def test_functions_are_registered_around_compilations():
    seen = []
    callbacks = internals.compile_callbacks()  # torch._dynamo.callback
    callbacks.register_start_callback(seen.append)
    try:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    finally:
        callbacks.remove_start_callback(seen.append)
    assert len(seen) == 1


def test_a_compilation_has_its_id_torch_s_reason_and_its_graph_breaks():
    @torch.compile(backend="eager", dynamic=False)
    def broken(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    seen = []
    torch.compiler.reset()
    callbacks, before = internals.compile_callbacks(), internals.graph_breaks()  # dynamo.utils.counters
    callbacks.register_end_callback(seen.append)
    try:
        broken(torch.ones(2))
        assert internals.graph_breaks() == before + 1
        broken(torch.ones(3))
    finally:
        callbacks.remove_end_callback(seen.append)
        torch.compiler.reset()
    records = internals.compilation_records()[-4:]  # dynamo.utils.get_compilation_metrics
    assert [str(about.compile_id) for about in seen] == [str(record.compile_id) for record in records]
    assert {about.callback_trigger.name for about in seen} == {"DYNAMO"}
    assert [record.recompile_reason is None for record in records] == [True, True, False, False]
    assert "size mismatch at index 0. expected 2, actual 3" in records[-1].recompile_reason
    for record in records:
        assert record.is_forward
        assert record.fail_type is None
        assert record.co_filename == __file__
        assert "broken" in record.co_name
        assert record.co_firstlineno > 0
        assert 0 < record.start_time_us <= time.time_ns() // 1000


def test_a_function_that_torch_gives_up_is_recorded_under_its_number():
    @torch.compile(backend="eager", dynamic=False)
    def plus(x):
        return x + 1

    torch.compiler.reset()
    for size in range(2, 3 + torch._dynamo.config.recompile_limit):
        plus(torch.ones(size))
    *_, last, failed = internals.compilation_records()
    torch.compiler.reset()
    assert failed.fail_type
    assert str(failed.compile_id).partition("/")[0] == str(last.compile_id).partition("/")[0]


def test_a_snapshot_of_cuda_s_memory_has_its_name():
    assert internals.dump_memory_snapshot is torch.cuda.memory._dump_snapshot
    assert "filename" in inspect.signature(internals.dump_memory_snapshot).parameters
