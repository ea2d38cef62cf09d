"""The files for Kubernetes: the page shows them, and the image has what the package needs."""

import re
import tomllib
from pathlib import Path

import yaml

import paceline

ROOT = Path(paceline.__file__).parent
FILES = ROOT / "docs/guides/kubernetes"


def test_the_page_shows_the_files():
    page = (ROOT / "docs/guides/kubernetes.md").read_text()
    for name in ("Dockerfile", "trainjob.yaml", "job.yaml"):
        assert f"\n{(FILES / name).read_text()}```" in page, name


def test_the_image_is_built_from_all_folders_of_the_package():
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    kept = (FILES / "Dockerfile.dockerignore").read_text().splitlines()
    assert kept[0] == "*"
    assert {name.split(".")[1] for name in packages if "." in name} <= {one[2:] for one in kept[1:]}
    assert {"!/*.py", "!/pyproject.toml", "!/constraints.txt", "!/README.md"} <= set(kept)


def test_the_jobs_start_launchers_that_meet():
    runtime, job = yaml.safe_load_all((FILES / "trainjob.yaml").read_text())
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["trainer"]["command"][:2] == ["paceline", "launch"]
    service, job = yaml.safe_load_all((FILES / "job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"][-1]
    name = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert f"--rdzv-endpoint {name}:29500" in command
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert re.search(r"--nnodes (\d+)", command)[1] == str(job["spec"]["completions"])
    assert {one["name"] for one in pod["containers"][0]["volumeMounts"]} == {
        one["name"] for one in pod["volumes"]
    }
