"""How much memory torch's allocator gives out on the CPU."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile


def most_allocated(function: Callable[[], Any], trace: Path) -> int:
    """The most bytes that were given out at once while ``function`` ran; memory maps are not in it.

    Args:
        function: What is measured, in this process.
        trace: A file to write the profiler's events to.
    """
    gc.collect()  # what it would free meanwhile is not the function's
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    profiler.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    counts = [event["args"] for event in sorted(events, key=lambda event: event["ts"])]
    of_allocator = [count for count in counts if count["Total Allocated"]]
    before = of_allocator[0]["Total Allocated"] - of_allocator[0]["Bytes"]
    return max(count["Total Allocated"] for count in of_allocator) - before
