"""What a process may use of its machine, read from planted files."""

import pytest

from paceline.trainer.utils import machine


def test_the_lowest_limit_of_a_group_and_those_above_counts(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/job/step\n")
    root = tmp_path / "groups"
    for folder, cpu, memory in (("job", "150000 100000", "max"), ("job/step", "max 100000", "4096")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "cpu.max").write_text(f"{cpu}\n")
        (root / folder / "memory.max").write_text(f"{memory}\n")
    assert machine.cgroup_limits(root, own) == (1.5, 4096)


def test_groups_of_version_1(tmp_path):
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/a\n4:memory:/a\n")
    root = tmp_path / "groups"
    (root / "cpu/a").mkdir(parents=True)
    (root / "cpu/a/cpu.cfs_quota_us").write_text("50000")
    (root / "cpu/a/cpu.cfs_period_us").write_text("100000")
    (root / "memory/a").mkdir(parents=True)
    (root / "memory/memory.limit_in_bytes").write_text("9223372036854771712")  # no limit
    (root / "memory/a/memory.limit_in_bytes").write_text("1000")
    assert machine.cgroup_limits(root, own) == (0.5, 1000)


def test_no_groups_no_limits(tmp_path):
    assert machine.cgroup_limits(tmp_path, tmp_path / "none") == (None, None)


@pytest.mark.parametrize(("quota", "most"), [(0.5, 1), (1.0, 1), (None, 10**6)])
def test_a_quota_leaves_at_least_one_processor(quota, most):
    assert 1 <= machine.processors(quota) <= most


def test_containers_are_recognised(tmp_path, monkeypatch):
    for name in ("KUBERNETES_SERVICE_HOST", "APPTAINER_NAME", "SINGULARITY_NAME", "container"):
        monkeypatch.delenv(name, raising=False)
    assert machine.container(tmp_path) is None
    (tmp_path / ".dockerenv").touch()
    assert machine.container(tmp_path) == "docker"
    monkeypatch.setenv("APPTAINER_NAME", "image.sif")
    assert machine.container(tmp_path) == "apptainer"


def test_space_of_what_is_not_there(tmp_path):
    total, free = machine.space(tmp_path)
    assert 0 < free <= total
    assert machine.space(tmp_path / "none") is None
