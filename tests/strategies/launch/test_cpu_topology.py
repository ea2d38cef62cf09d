"""Which CPUs ranks get, on machines of several kinds: trees like /sys, in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.strategies.launch.cpu_topology import (
    Place,
    Share,
    Topology,
    deal,
    format_cpus,
    parse_cpus,
    place_of_device,
    read_topology,
    share_of,
)


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def machine(root: Path, nodes: dict[int, str], siblings: list[str], devices: dict[str, int]) -> Path:
    """A tree like /sys: CPU lists of nodes and cores, and the node of each PCI device."""
    for number, cpus in nodes.items():
        write(root / f"devices/system/node/node{number}/cpulist", cpus)
    write(root / "devices/system/node/possible", "0-1")
    for core in siblings:
        for cpu in parse_cpus(core):
            write(root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", core)
    write(root / "devices/system/cpu/cpufreq/boost", 1)
    for address, node in devices.items():
        write(root / f"bus/pci/devices/{address}/numa_node", node)
    return root


GPUS = {
    f"0000:{bus}:00.0": n // 4 for n, bus in enumerate(["1b", "43", "52", "61", "9d", "c3", "d1", "df"])
}


@pytest.fixture
def two_sockets(tmp_path):
    """Two sockets of 8 cores with 2 threads each, and 4 accelerators at each socket."""
    return machine(
        tmp_path / "sys",
        {0: "0-7,16-23", 1: "8-15,24-31"},
        [f"{core},{core + 16}" for core in range(16)],
        GPUS,
    )


def dealt(root: Path, ranks: int, allowed: str) -> list[str]:
    return [format_cpus(cpus) for cpus in deal(read_topology(root), parse_cpus(allowed), ranks)]


# -- ranks that compute on CPUs ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "shares"),
    [
        (1, ["0-31"]),
        (2, ["0-7,16-23", "8-15,24-31"]),
        (3, ["0-3,16-19", "4-7,20-23", "8-15,24-31"]),
        (4, ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
        (16, [f"{core},{core + 16}" for core in range(16)]),
        (32, [str(core + more) for core in range(16) for more in (0, 16)]),
        (33, []),
    ],
)
def test_ranks_get_nodes_or_parts_of_one_with_whole_cores(two_sockets, ranks, shares):
    assert dealt(two_sockets, ranks, "0-31") == shares


def test_siblings_that_are_numbered_side_by_side_stay_together(tmp_path):
    root = machine(tmp_path, {0: "0-7"}, ["0-1", "2-3", "4-5", "6-7"], {})
    assert dealt(root, 3, "0-7") == ["0-1", "2-3", "4-7"]


def test_one_socket_is_split_evenly(tmp_path):
    root = machine(tmp_path, {0: "0-11"}, [str(cpu) for cpu in range(12)], {})
    assert dealt(root, 4, "0-11") == ["0-2", "3-5", "6-8", "9-11"]


@pytest.mark.parametrize("has_cores", [True, False])
def test_a_machine_without_numa_information_is_one_node(tmp_path, has_cores):
    write(tmp_path / "devices/system/cpu/online", "0-3")
    if has_cores:
        machine(tmp_path, {}, ["0,2", "1,3"], {})
    assert dealt(tmp_path, 2, "0-3") == (["0,2", "1,3"] if has_cores else ["0-1", "2-3"])
    assert dealt(tmp_path, 1, "1-2") == ["1-2"]


def test_without_a_description_of_the_cpus_there_is_no_topology(tmp_path):
    assert read_topology(tmp_path) is None


def test_what_a_cgroup_leaves_is_dealt_out(two_sockets):
    assert dealt(two_sockets, 2, "4-9,20-25") == ["4-7,20-23", "8-9,24-25"]
    assert dealt(two_sockets, 2, "4-7,20-23") == ["4-5,20-21", "6-7,22-23"]
    assert dealt(two_sockets, 2, "3-5") == ["3", "4-5"]  # one thread of each core is allowed
    assert dealt(two_sockets, 2, "3,19") == ["3", "19"]  # one core: its threads have to part
    assert dealt(two_sockets, 2, "3") == []


def test_a_few_cpus_of_another_node_leave_no_rank_short(two_sockets):
    assert dealt(two_sockets, 2, "0-8") == ["0-3", "4-7"]
    assert dealt(two_sockets, 1, "0-8") == ["0-8"]


def test_several_nodes_of_a_socket_go_to_one_rank(tmp_path):
    nodes = {number: f"{4 * number}-{4 * number + 3}" for number in (0, 1, 2, 10)}
    nodes[10] = "12-15"
    root = machine(tmp_path, nodes | {3: ""}, [str(cpu) for cpu in range(16)], {})  # node 3: memory alone
    assert dealt(root, 2, "0-15") == ["0-7", "8-15"]
    assert dealt(root, 4, "0-15") == ["0-3", "4-7", "8-11", "12-15"]


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@given(SIZES, st.integers(1, 2), st.integers(1, 40), st.sets(st.integers(0, 59), min_size=1))
def test_every_rank_gets_cpus_and_no_two_ranks_the_same(sizes, smt, ranks, allowed):
    nodes, cores, first = {}, {}, 0
    for number, size in enumerate(sizes):
        nodes[number] = frozenset(range(first, first + smt * size))
        for core in range(first, first + smt * size, smt):
            cores |= dict.fromkeys(range(core, core + smt), frozenset(range(core, core + smt)))
        first += smt * size
    shares = deal(Topology(nodes, cores), frozenset(allowed), ranks)
    assert len(shares) == (ranks if ranks <= len(allowed) else 0)
    assert all(shares)
    assert sum(map(len, shares)) == len(frozenset().union(*shares))
    assert frozenset().union(*shares) <= allowed


# -- ranks on accelerators ---------------------------------------------------------------------


def places(root: Path, allowed: str = "0-31", devices: dict[str, int] = GPUS) -> list[Place]:
    topology, cpus = read_topology(root), parse_cpus(allowed)
    return [
        place_of_device(topology, "one", cpus, f"cuda:{n}", address, root)
        for n, address in enumerate(devices)
    ]


def test_each_of_8_accelerators_gets_its_node_which_4_ranks_share(two_sockets):
    topology, found = read_topology(two_sockets), places(two_sockets)
    shares = [share_of(rank, found, topology) for rank in range(8)]
    assert [format_cpus(share.cpus) for share in shares] == ["0-7,16-23"] * 4 + ["8-15,24-31"] * 4
    assert {share.threads for share in shares} == {4}


def test_cpus_that_a_container_leaves_of_a_node_are_taken(two_sockets):
    found = places(two_sockets, "0-3,8")
    assert [format_cpus(place.near) for place in found] == ["0-3"] * 4 + ["8"] * 4
    assert share_of(7, found, read_topology(two_sockets)).threads == 1


def test_a_device_on_a_node_with_no_allowed_cpu_is_not_pinned(two_sockets):
    found = places(two_sockets, "0-7")
    assert found[0].near == parse_cpus("0-7")
    share = share_of(7, found, read_topology(two_sockets))
    assert share == Share(
        problem="cuda:7 is on NUMA node 1, and this process may use CPUs 0-7 only, which are on others"
    )


@pytest.mark.parametrize("node", [-1, 7, None])
def test_a_device_whose_node_is_not_known_is_not_pinned(two_sockets, node):
    address = None if node is None else "0000:ff:00.0"
    if node is not None:
        write(two_sockets / f"bus/pci/devices/{address}/numa_node", node)
    topology = read_topology(two_sockets)
    place = place_of_device(topology, "one", parse_cpus("0-31"), "xpu:0", address, two_sockets)
    assert place.problem == "the NUMA node of xpu:0 is not known"
    assert share_of(0, [place], topology).cpus == frozenset()


def test_on_one_node_a_device_has_all_cpus_whatever_its_file_says(tmp_path):
    root = machine(tmp_path, {0: "0-7"}, [], {"0000:1b:00.0": -1})
    (place,) = places(root, "2-5", {"0000:1b:00.0": -1})
    assert place.near == parse_cpus("2-5")


# -- ranks on several machines, and under batch systems ----------------------------------------


def test_ranks_of_each_machine_are_dealt_its_own_cpus(two_sockets):
    topology, all_cpus = read_topology(two_sockets), parse_cpus("0-31")
    found = [Place("one", all_cpus), Place("two", all_cpus)] * 2  # srun may deal ranks out in turns
    shares = [format_cpus(share_of(rank, found, topology).cpus) for rank in range(4)]
    assert shares == ["0-7,16-23", "0-7,16-23", "8-15,24-31", "8-15,24-31"]


def test_ranks_that_a_batch_system_gave_cpus_of_their_own_keep_them(two_sockets):
    topology = read_topology(two_sockets)
    found = [Place("one", parse_cpus("0-3")), Place("one", parse_cpus("4-7"))]
    assert [format_cpus(share_of(rank, found, topology).cpus) for rank in (0, 1)] == ["0-3", "4-7"]


def test_more_ranks_than_cpus_are_not_pinned(two_sockets):
    found = [Place("one", parse_cpus("3,19"))] * 3
    share = share_of(1, found, read_topology(two_sockets))
    assert share == Share(problem="there are 3 ranks for 2 CPUs (3,19)")


def test_a_rank_that_cannot_be_pinned_takes_no_part(two_sockets):
    found = [Place("one", parse_cpus("0-31")), Place("one", problem="no /sys")]
    assert share_of(0, found, read_topology(two_sockets)).cpus == parse_cpus("0-31")
    assert share_of(1, found, read_topology(two_sockets)) == Share(problem="no /sys")


# -- lists -------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 300)))
def test_lists_are_read_as_they_are_written(cpus):
    assert parse_cpus(format_cpus(cpus)) == cpus


def test_lists_are_written_as_linux_does():
    assert format_cpus([9, 0, 2, 1, 5]) == "0-2,5,9"
    assert parse_cpus("") == frozenset()


@pytest.mark.skipif(not Path("/sys/devices/system/node/node0").exists(), reason="needs Linux with NUMA")
def test_this_machine_is_read():
    topology, allowed = read_topology(), os.sched_getaffinity(0)
    assert frozenset().union(*topology.nodes.values()) >= allowed
    assert all(cpu in cores for cpu, cores in topology.cores.items())
