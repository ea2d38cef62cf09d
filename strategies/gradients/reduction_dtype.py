"""The communication hook with which DDP averages gradients in a wider dtype than their own."""

# torch compares the annotations of a hook with its classes: they must not be strings here.

import torch
import torch.distributed as dist


def average_in(dtype: torch.dtype, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks in ``dtype`` at least, and round it once.

    Args:
        dtype: The state of the hook: ``wrapped.register_comm_hook(torch.float32, average_in)``.
        bucket: Gradients of one dtype, flat.
    """
    narrow = bucket.buffer()
    wide = narrow.to(torch.promote_types(narrow.dtype, dtype)).div_(dist.get_world_size())
    reduced = dist.all_reduce(wide, async_op=True).get_future()

    def rounded(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return narrow.copy_(done.value()[0])

    result: torch.futures.Future[torch.Tensor] = reduced.then(rounded)
    return result
