"""Accelerate's configuration files: what they become, and the world that follows."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.environment import clean_environment

from paceline import PacelineError
from paceline.compat.configs import accelerate_names as names
from paceline.compat.configs.reading import OUTCOMES
from paceline.compat.configs.recognise import read_configuration

from .examples import EXAMPLES, REFUSED, TWO_MACHINES, ZERO2, ZERO3, ZERO_FILE, write


def read(folder, text, monkeypatch, name="default_config.yaml"):
    monkeypatch.chdir(folder)
    (folder / name).write_text(text)
    return read_configuration(Path(name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_arguments_and_the_world(name, tmp_path, monkeypatch):
    example = EXAMPLES[name]
    write(tmp_path, example)
    monkeypatch.chdir(tmp_path)
    reading = read_configuration(Path("default_config.yaml"))
    assert reading.trainer == example.trainer
    devices = reading.trainer["devices"]
    ranks = devices if isinstance(devices, int) else len(devices)
    machines = reading.trainer.get("num_nodes", 1)
    assert (ranks, machines) == example.world
    total = int(re.search(r"^num_processes: (\d+)", example.text, re.MULTILINE)[1])
    assert ranks * machines == total


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_key_has_one_note_with_its_line(name, tmp_path, monkeypatch):
    example = EXAMPLES[name]
    write(tmp_path, example)
    monkeypatch.chdir(tmp_path)
    notes = read_configuration(Path("default_config.yaml")).notes
    lines = example.text.splitlines()
    keys = [line for line in lines if not line.endswith("_config:")]
    own = [note for note in notes if note.place.startswith("default_config.yaml")]
    assert sorted(int(note.place.rpartition(":")[2]) for note in own) == [
        lines.index(key) + 1 for key in keys
    ]
    for note in notes:
        assert note.outcome in OUTCOMES[:4]
        assert note.became, note
    if example.json:
        further = {note.path.partition(".")[0] for note in notes if note.place.startswith("ds.json:")}
        assert further == set(json.loads(example.json.replace("\t", " ")))


def test_the_trainer_takes_all_of_them(tmp_path, monkeypatch):
    given = {}
    for name, example in EXAMPLES.items():
        write(tmp_path, example)
        monkeypatch.chdir(tmp_path)
        given[name] = read_configuration(Path("default_config.yaml")).trainer
        strategy = given[name].get("strategy")
        if example.json and isinstance(strategy["config"], str):  # the next example has another file
            (tmp_path / "kept.json").write_text(example.json)
            strategy["config"] = "kept.json"
    job = Path(__file__).with_name("validated_job.py")
    command = [sys.executable, job, json.dumps(given)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=clean_environment(), timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for name, example in EXAMPLES.items():
        world_size, _, precision = found[name]
        assert world_size == example.world[0] * example.world[1], name
        assert precision == example.trainer.get("precision", "32"), name
    strategies = {name: strategy for name, (_, strategy, _) in found.items()}
    assert strategies["single"] == "single"
    assert strategies["FSDP 2"] == "hsdp"
    assert strategies["ZeRO 3 by JSON"] == "deepspeed_stage_3"
    assert strategies["ZeRO 3"] == "deepspeed_stage_3_offload"


def test_each_machine_has_its_command(tmp_path, monkeypatch):
    assert read(tmp_path, TWO_MACHINES, monkeypatch).launch == tuple(
        f"paceline launch --nnodes 2 --nproc 8 --node-rank {rank} --master-addr 192.168.20.1 "
        "--master-port 8080 train.py"
        for rank in (0, 1)
    )
    met = read(tmp_path, EXAMPLES["two machines, c10d"].text, monkeypatch).launch
    endpoint = "--rdzv-backend c10d --rdzv-endpoint 192.168.20.1:8080"
    assert met == (f"paceline launch --nnodes 2 --nproc 8 {endpoint} train.py",)
    by_mpi = read(tmp_path, EXAMPLES["CPUs"].text, monkeypatch).launch
    assert by_mpi == (
        "mpirun --hostfile /home/me/hosts -n 8 --npernode 4 -x MASTER_ADDR=10.0.0.4 "
        "-x MASTER_PORT=29600 python train.py",
    )
    assert read(tmp_path, ZERO2, monkeypatch).launch == ()


@pytest.mark.parametrize(
    ("name", "key", "instead"),
    [
        (
            "Megatron-LM",
            "distributed_type",
            "train with Megatron Bridge or NeMo, or write FSDP(tensor=...)",
        ),
        ("TPU", "distributed_type", "torch_xla's own launcher with Accelerate"),
        ("SageMaker", "compute_environment", 'distribution={"torch_distributed": {"enabled": True}}'),
    ],
)
def test_what_is_refused_names_what_to_use(name, key, instead, tmp_path, monkeypatch):
    reading = read(tmp_path, REFUSED[name], monkeypatch)
    assert reading.trainer == {}
    (refused,) = reading.refused
    assert refused.path == key
    assert instead in refused.became
    assert len(reading.notes) == len(re.findall(r"^\w", REFUSED[name], re.MULTILINE))


def test_other_kinds_of_parallelism_are_refused(tmp_path, monkeypatch):
    text = EXAMPLES["FSDP 2"].text.replace("_cp_size: 1", "_cp_size: 2")
    (refused,) = read(tmp_path, text, monkeypatch).refused
    assert refused.path == "parallelism_config.parallelism_config_cp_size"
    assert (
        "context parallelism, for attention over parts of one sequence, is not available" in refused.became
    )
    assert "torchtitan" in refused.became
    text = TWO_MACHINES.replace("MULTI_GPU", "TP")
    (refused,) = read(tmp_path, text, monkeypatch).refused
    assert "distributed_type: FSDP with parallelism_config_tp_size" in refused.became


def test_layers_are_split_as_the_file_says(tmp_path, monkeypatch):
    text = (
        EXAMPLES["FSDP 2"]
        .text.replace("_tp_size: 1", "_tp_size: 2")
        .replace("_shard_size: 2", "_shard_size: 1")
    )
    strategy = read(tmp_path, text, monkeypatch).trainer["strategy"]
    assert (strategy["class"], strategy["replicate"], strategy["tensor"]) == ("HSDP", 2, 2)
    with pytest.raises(PacelineError, match="2 x 2 processes, and num_processes is 2"):
        read(tmp_path, text.replace("_shard_size: 1", "_shard_size: 2"), monkeypatch)
    with pytest.raises(PacelineError, match="4 processes are not groups of 3"):
        read(tmp_path, text.replace("_tp_size: 2", "_tp_size: 3"), monkeypatch)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "num_processes: 16",
            "num_processes: 15",
            "num_processes (default_config.yaml:13): 15 processes cannot be divided over 2 machines "
            "evenly; allowed: 14 or 16",
        ),
        (
            "num_machines: 2",
            "num_machines: two",
            "num_machines (default_config.yaml:12): got 'two'; allowed: an",
        ),
        (
            "gpu_ids: all",
            "gpu_ids: 0,1",
            "gpu_ids (default_config.yaml:6): 2 ids, and 8 processes on a machine",
        ),
        ("mixed_precision: fp16", "mixed_precision: bf-16", "did you mean bf16?"),
        ("mixed_precision: fp16", "mixed_precison: fp16", "has no such key; did you mean mixed_precision?"),
        ("distributed_type: MULTI_GPU", "distributed_type: MULTI_GPUS", "did you mean MULTI_GPU?"),
        ("distributed_type: MULTI_GPU\n", "", "distributed_type (default_config.yaml): it is missing"),
        (
            "debug: false",
            "debug: maybe",
            "debug (default_config.yaml:2): got 'maybe'; allowed: true or false",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(before, after, said, tmp_path, monkeypatch):
    assert before in TWO_MACHINES
    with pytest.raises(PacelineError) as raised:
        read(tmp_path, TWO_MACHINES.replace(before, after), monkeypatch)
    assert said in str(raised.value)


def test_a_key_like_none_that_is_known_is_a_note(tmp_path, monkeypatch):
    reading = read(tmp_path, ZERO2 + "zebra: 3\n", monkeypatch)
    assert reading.notes[-1].path == "zebra"
    assert reading.notes[-1].outcome == "unknown"
    assert reading.trainer == EXAMPLES["ZeRO 2"].trainer


def test_precisions_without_a_counterpart_are_named(tmp_path, monkeypatch):
    reading = read(tmp_path, ZERO2.replace("mixed_precision: bf16", "mixed_precision: fp16"), monkeypatch)
    assert reading.trainer["precision"] == "fp16"
    text = TWO_MACHINES.replace("fp16", "fp8") + "fp8_config:\n  backend: TE\n  margin: 0\n"
    reading = read(tmp_path, text, monkeypatch)
    assert reading.trainer["precision"] == "bf16"
    paths = [note.path for note in reading.notes if note.outcome == "no counterpart"]
    assert paths == ["mixed_precision", "fp8_config.backend", "fp8_config.margin"]


@pytest.mark.parametrize(
    ("dynamo", "compiled"),
    [
        ("  dynamo_backend: INDUCTOR\n", True),
        ("  dynamo_backend: INDUCTOR\n  dynamo_use_regional_compilation: true\n", "blocks"),
        ("  dynamo_backend: inductor\n  dynamo_mode: max-autotune\n", "max-autotune"),
        ("  dynamo_backend: AOT_EAGER\n", {"backend": "aot_eager"}),
        ("  backend: EAGER\n  use_dynamic: yes\n", {"backend": "eager", "dynamic": True}),
    ],
)
def test_dynamo(dynamo, compiled, tmp_path, monkeypatch):
    from paceline.trainer.config.arguments import TrainerArguments

    reading = read(tmp_path, ZERO2 + "dynamo_config:\n" + dynamo, monkeypatch)
    assert reading.trainer["compile"] == compiled
    TrainerArguments(compile=compiled)


@pytest.mark.parametrize(
    ("sharding", "machines", "strategy"),
    [
        ("FULL_SHARD", 1, "fsdp"),
        (1, 2, "fsdp"),
        ("NO_SHARD", 1, "ddp"),
        ("HYBRID_SHARD", 1, "fsdp"),
        ("HYBRID_SHARD", 2, "hsdp"),
        (5, 2, {"class": "HSDP", "reshard_after_forward": False}),
    ],
)
@pytest.mark.parametrize("key", ["fsdp_sharding_strategy", "fsdp_reshard_after_forward"])
def test_sharding_strategies_of_the_first_version(key, sharding, machines, strategy, tmp_path, monkeypatch):
    text = "distributed_type: FSDP\nnum_processes: 4\n"
    text += f"num_machines: {machines}\nfsdp_config:\n  {key}: {sharding}\n"
    assert read(tmp_path, text, monkeypatch).trainer["strategy"] == strategy


def test_the_json_file_is_found_beside_the_configuration(tmp_path, monkeypatch):
    folder = tmp_path / "configs"
    folder.mkdir()
    write(folder, EXAMPLES["ZeRO 3 by JSON"])
    monkeypatch.chdir(tmp_path)
    reading = read_configuration(Path("configs/default_config.yaml"))
    assert reading.trainer["strategy"] == {"class": "DeepSpeed", "config": "configs/ds.json"}
    (folder / "ds.json").unlink()
    with pytest.raises(PacelineError, match=r"yaml:4\): got 'ds.json'; there is no such file"):
        read_configuration(Path("configs/default_config.yaml"))


def test_batch_sizes_that_contradict_each_other(tmp_path, monkeypatch):
    example = EXAMPLES["ZeRO 2 by JSON"]
    (tmp_path / "ds.json").write_text(example.json.replace(": 64", ": 60"))
    with pytest.raises(PacelineError, match="60 is not 8 samples x 4 micro-batches x 2 ranks"):
        read(tmp_path, ZERO_FILE, monkeypatch)


def test_reading_imports_neither_torch_nor_accelerate_nor_deepspeed(tmp_path):
    write(tmp_path, EXAMPLES["ZeRO 3 by JSON"])
    code = (
        "import sys; from pathlib import Path\n"
        "from paceline.compat.configs.recognise import read_configuration\n"
        "read_configuration(Path('default_config.yaml'))\n"
        "print({'torch', 'accelerate', 'deepspeed', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=clean_environment()
    )
    assert done.stdout == "set()\n", done.stderr


def test_every_field_of_accelerates_own_classes_is_known():
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    known = {"compute_environment", *names.TOP, *names.READ_TOP, *names.SAGEMAKER}
    for kind in (arguments.ClusterConfig, arguments.SageMakerConfig):
        fields = {field.name for field in dataclasses.fields(kind)}
        assert fields <= known, f"{kind.__name__}: {sorted(fields - known)}"


def test_every_option_and_value_of_accelerate_is_known():
    launch = pytest.importorskip("accelerate.commands.launch")
    from accelerate.utils import dataclasses as values

    options = {action.dest for action in launch.launch_command_parser()._actions}
    fsdp = {name for name in options if name.startswith("fsdp_")}
    assert fsdp <= {*names.FSDP, *names.READ_FSDP}
    fp8 = {name for name in options if name.startswith("fp8_")}
    assert fp8 <= set(names.FP8)
    parallel = {name for name in options if name.startswith("parallelism_config_")}
    assert parallel <= {f"parallelism_config_{name}" for name in names.PARALLEL}
    zero = {name for name in options if name.startswith(("zero", "offload_", "deepspeed_", "gradient_"))}
    assert zero <= {*names.DEEPSPEED, *names.READ_DEEPSPEED}
    dynamo = {name for name in options if name.startswith("dynamo_")}
    assert dynamo <= {*names.DYNAMO, names.DYNAMO_BLOCKS}
    kinds = {kind.value for kind in values.DistributedType}
    assert kinds <= {*names.KINDS, *names.REFUSED_KINDS}
    assert {backend.value for backend in values.DynamoBackend} <= set(names.BACKENDS)


def test_older_forms(tmp_path, monkeypatch):
    text = "distributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\ndynamo_backend: EAGER\n"
    assert read(tmp_path, text, monkeypatch).trainer == {
        "accelerator": "gpu",
        "devices": 2,
        "precision": "fp16",
        "strategy": "ddp",
        "compile": {"backend": "eager"},
    }
    as_json = '{"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "num_processes": 1}'
    assert read(tmp_path, as_json, monkeypatch, "default_config.json").trainer == {"devices": 1}


def test_offload_of_the_optimizer_alone_under_stage_3(tmp_path, monkeypatch):
    text = ZERO3.replace("offload_param_device: cpu", "offload_param_device: none")
    assert read(tmp_path, text, monkeypatch).trainer["strategy"] == {
        "class": "DeepSpeed",
        "stage": 3,
        "config": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
    }


def test_the_json_file_and_mixed_precision(tmp_path, monkeypatch):
    (tmp_path / "ds.json").write_text(EXAMPLES["ZeRO 3 by JSON"].json)
    reading = read(tmp_path, ZERO_FILE + "mixed_precision: no\n", monkeypatch)
    assert reading.trainer["precision"] == "bf16"
    (note,) = [note for note in reading.notes if note.path == "mixed_precision"]
    assert (note.outcome, note.became) == ("default", "deepspeed_config_file says it")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    assert read(tmp_path, ZERO_FILE + "mixed_precision: bf16\n", monkeypatch).trainer["precision"] == "bf16"


def test_an_odd_address_is_quoted(tmp_path, monkeypatch):
    text = TWO_MACHINES.replace("192.168.20.1", "'gpu 1; rm'")
    assert "--master-addr 'gpu 1; rm' " in read(tmp_path, text, monkeypatch).launch[0]


@pytest.mark.parametrize(
    ("kind", "line", "strategy"),
    [
        ("DEEPSPEED", "zero_stage: 3", "deepspeed_stage_3"),
        ("DEEPSPEED", "zero_stage: 1", "deepspeed_stage_1"),
        ("FSDP", "fsdp_sharding_strategy: NO_SHARD", "ddp"),
        ("FSDP", "fsdp_offload_params: true", {"class": "FSDP", "cpu_offload": True}),
    ],
)
def test_a_key_that_decides_the_strategy_is_read_where_tutorials_write_it(
    kind, line, strategy, tmp_path, monkeypatch
):
    """Beside the section that is to hold it; and refused where there is such a section too."""
    text = f"distributed_type: {kind}\nnum_processes: 2\n{line}\n"
    reading = read(tmp_path, text, monkeypatch)
    assert reading.trainer["strategy"] == strategy
    (note,) = [note for note in reading.notes if line.startswith(note.path)]
    assert (note.outcome, note.place) == ("read", "default_config.yaml:3")
    section = {
        "DEEPSPEED": "deepspeed_config:\n  gradient_clipping: 1.0",
        "FSDP": "fsdp_config:\n  fsdp_version: 2",
    }
    with pytest.raises(
        PacelineError, match=rf"default_config.yaml:3\): it belongs into {kind.lower()}_config"
    ):
        read(tmp_path, f"{text}{section[kind]}\n", monkeypatch)
