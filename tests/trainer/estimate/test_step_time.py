"""The model of a step's time: rings, what a wrong bandwidth does, and the table of devices."""

from pathlib import Path

import pytest
import torch
from helpers.jobs import load_job

from paceline import PacelineError, Trainer, tools
from paceline.strategies import Collective, Layout
from paceline.trainer.estimate.devices import DEVICES, find_device, parse_bytes
from paceline.trainer.estimate.step_time import Assumptions, collective_time

models = load_job(Path(__file__).with_name("models.py"))
EVEN = {"bandwidth": 1e12, "bandwidth_attainable": 1.0, "host_link": 10e9, "latency": 0.0}


@pytest.fixture(scope="module")
def estimated():
    module, batch = models.GPT(layers=2), models.GPT.batch()
    trainer = Trainer(precision="bf16", run_dir=None, accelerator="cpu")
    found = {}

    def of(**assume):
        key = tuple(sorted(assume.items()))
        if key not in found:
            found[key] = tools.estimate(
                trainer, module, batch, devices=64, gpu="H100", assume={"launch": 0, **assume}
            )
        return found[key]

    return of


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_wrong_bandwidth_moves_the_answer(estimated, strategy):
    usual, slow = estimated().row(strategy), estimated(network=5e9).row(strategy)
    assert slow.time.communication_share > usual.time.communication_share > 0
    assert slow.tokens_per_second < usual.tokens_per_second
    assert slow.time.mfu < usual.time.mfu
    assert slow.bytes == usual.bytes
    assert estimated(network=5e9).row("single").time == estimated().row("single").time


def test_no_overlap_exposes_all_communication(estimated):
    time = estimated(overlap=0).row("ddp").time
    assert time.exposed == time.communicating > estimated().row("ddp").time.exposed


def test_a_faster_device_computes_faster(estimated):
    usual, slow = estimated().row("single").time, estimated(attainable=0.1).row("single").time
    assert slow.computing > usual.computing
    assert slow.updating == usual.updating


@pytest.mark.parametrize(
    ("collective", "ranks", "per_node", "seconds"),
    [
        (Collective("all_reduce", 100e9), 8, 8, 2 * 7 / 8),  # by the link of 100 GB/s
        (Collective("all_gather", 100e9), 8, 8, 7 / 8),
        (
            Collective("reduce_scatter", 100e9),
            16,
            8,
            15 / 16,
        ),  # 8 rings leave, the link is less
        (Collective("reduce_scatter", 100e9), 16, 1, 2 * 15 / 16),  # one, by the network of 50 GB/s
        (Collective("all_reduce", 100e9, ranks=4), 32, 8, 2 * 3 / 4),
        (Collective("all_reduce", 100e9, ranks=4, between_nodes=True), 32, 8, 2 * 2 * 3 / 4),
        (Collective("to_host", 10e9), 8, 8, 1.0),
    ],
)
def test_rings_take_n_minus_1_parts_of_n(collective, ranks, per_node, seconds):
    assumed = Assumptions(1e12, link=100e9, network=50e9, **EVEN)
    assert collective_time(collective, Layout(ranks, per_node), assumed) == pytest.approx(seconds)


def test_each_operation_has_its_hops():
    assumed = Assumptions(1e12, link=100e9, network=50e9, **{**EVEN, "latency": 1e-3})
    assert collective_time(Collective("all_gather", 0, times=3), Layout(8, 8), assumed) == pytest.approx(
        0.021
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("h200", "H200"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_devices_are_found_by_the_names_that_torch_gives(name, found):
    assert find_device(name).name == found


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_each_device_has_a_peak(device):
    assert device.peak(torch.float16) > 1e13


def test_an_unknown_device_is_an_error_that_names_the_known_ones():
    with pytest.raises(PacelineError, match=r"H1000(.|\n)*did you mean: H100"):
        find_device("H1000")


@pytest.mark.parametrize(
    ("given", "size"), [("80GiB", 80 * 2**30), ("80 GB", 80 * 10**9), (1000, 1000), ("1.5m", 1_500_000)]
)
def test_sizes(given, size):
    assert parse_bytes(given) == size


@pytest.mark.parametrize("given", ["lots", 0, "-1GiB", True, "80XB"])
def test_what_is_no_size_is_refused(given):
    with pytest.raises(PacelineError, match="no number of bytes"):
        parse_bytes(given)
