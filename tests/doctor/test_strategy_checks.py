"""What the checks of a strategy say of what its ranks found."""

import pytest
import torch

from paceline.doctor.rank_ends import main_stack, why_ended
from paceline.doctor.strategy_checks import judge_collectives, judge_order, judge_weights, judge_world
from paceline.testing.ranks import Report


def rank(number, world=2, members=None, device="cpu"):
    members = list(range(world)) if members is None else members
    return {"rank": number, "world_size": world, "members": members, "device": device, "host": "a"}


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([rank(0), rank(1)], None),
        ([rank(0, 1), rank(0, 1)], "rank 0 is in a world of 1, and 2 are asked for"),
        ([rank(0)], "1 of 2 ranks joined"),
        ([rank(0, members=[0, 0]), rank(1)], "rank 0 met ranks [0, 0]"),
        (
            [rank(0, device="a:0"), rank(1, device="a:0")],
            "several ranks use one device: a:0, a:0",
        ),
        ([rank(0, device="a:0"), rank(1, device="a:1")], None),
    ],
)
def test_the_world_is_what_was_asked(ranks, said):
    found = judge_world(2, ranks, "ddp")
    if said is None:
        assert (found.outcome, found.cure) == ("ok", "")
    else:
        assert (found.outcome, found.found, found.strategy) == ("FAILED", said, "ddp")
        assert "WORLD_SIZE" in found.cure


def test_collectives():
    assert judge_collectives([[], []]).outcome == "ok"
    found = judge_collectives([[], ["all_reduce gives 1 on rank 1, and 2 is right"]])
    assert (found.outcome, found.found) == ("FAILED", "all_reduce gives 1 on rank 1, and 2 is right")
    assert "NCCL_DEBUG=INFO" in found.cure


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ([[[0, 1], [4]], [[2, 3], [5]]], None),
        (
            [[[0, 1], [4]], [[0, 3], [5]]],
            "1 samples were taken twice (first 0) and 1 were not taken",
        ),
        ([[[0, 4], [1]], [[2, 3], [5]]], "step 1 has other samples than on one device"),
        (
            [[[0, 1], [4]], [[2, 3]]],
            "different numbers of steps: rank 0 took 2, rank 1 took 1",
        ),
    ],
)
def test_the_order_of_the_data(taken, said):
    found = judge_order(taken, [[3, 2, 1, 0], [5, 4]])
    assert found.outcome == ("FAILED" if said else "ok")
    assert (said or "6 samples, each once") in found.found
    assert bool(found.cure) == bool(said)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"a": torch.tensor([1.0, 2.0]), "b": torch.zeros(1)}, None),
        ({"a": torch.tensor([1.0, 2.1]), "b": torch.zeros(1)}, "a differs by 0.1 from one device"),
        ({"a": torch.tensor([1.0, torch.nan]), "b": torch.zeros(1)}, "a differs by nan from one device"),
        ({"a": torch.tensor([1.0, 2.0])}, "weights: b missing"),
        ({"a": torch.zeros(3), "b": torch.zeros(1)}, "a has shape [3], and [2] on one device"),
    ],
)
def test_weights(found, said):
    right = {"a": torch.tensor([1.0, 2.0]), "b": torch.zeros(1)}
    result = judge_weights("checkpoint", found, right, "fsdp")
    assert result.outcome == ("FAILED" if said else "ok")
    assert (said or "weights within 0.0e+00 of one device (bound 1e-05)") in result.found
    assert bool(result.cure) == bool(said)


DUMP = """Timeout (0:00:05)!
Thread 0x1 (most recent call first):
  File "/lib/threading.py", line 1 in wait

Thread 0x2 (most recent call first):
  File "{}", line 7 in {}
  File "/home/me/train.py", line 3 in <module>
"""
GLOO = DUMP.format("/site/torch/distributed/distributed_c10d.py", "all_reduce")


@pytest.mark.parametrize(
    ("outputs", "reports", "said"),
    [
        (
            [GLOO, DUMP.format("/home/me/data.py", "read")],
            [Report("s", code=1), Report("s", code=1)],
            "rank 1 hangs for 5 s in read (/home/me/data.py:7)",
        ),
        (
            ["", DUMP.format("/home/me/data.py", "read")],
            [Report("s", error="RuntimeError: Connection closed by peer", code=1), Report("s", code=1)],
            "rank 1 hangs for 5 s in read (/home/me/data.py:7)",
        ),
        ([GLOO, ""], [Report("s", code=1), Report("s")], "rank 1 hangs: it did not answer at all for 5 s"),
        ([GLOO, GLOO], [Report("s", code=1), Report("s", code=1)], "all ranks wait for each other for 5 s"),
        ([GLOO, ""], [Report("s", code=1), Report("s", code=-9)], "rank 1 was killed by SIGKILL"),
        ([GLOO, ""], [Report("s", code=1), Report("s", code=3)], "rank 1 ended with exit code 3"),
        (
            ["", ""],
            [Report("s", error="RuntimeError: Connection reset", code=1), Report("s", code=-9)],
            "rank 1 was killed by SIGKILL",
        ),
        (
            ["", ""],
            [
                Report("s", error="RuntimeError: Connection closed by peer", at=1.0, code=1),
                Report("s", error="ValueError: the cause", at=2.0, code=1),
            ],
            "rank 1: ValueError: the cause",
        ),
        (
            ["", ""],
            [
                Report("", code=0),
                Report("s", error="PacelineError: bad\n  got: 3\n  fix: do", code=1),
            ],
            "rank 1: bad (3)",
        ),
    ],
)
def test_the_rank_that_kept_the_others_is_named(outputs, reports, said, tmp_path):
    for number, output in enumerate(outputs):
        (tmp_path / f"output-{number}.txt").write_text(output)
    text, cure, details = why_ended(reports, tmp_path, "s", 5)
    assert text == said
    if "in read" in said:
        assert details == [
            "the stack of rank 1, the innermost call first:",
            "  /home/me/data.py:7 in read",
            "  /home/me/train.py:3 in <module>",
        ]
    else:
        printed = details[0].startswith("the output of rank ")
        assert printed or details == [f"{said[:6]} has printed nothing"]
    assert "(`ps`: D" in cure or "did not answer" not in said
    if "bad" in said:
        assert cure == "do"


def test_the_stack_of_the_main_thread():
    assert main_stack(GLOO)[0][2] == "all_reduce"
    assert main_stack("nothing") == []
