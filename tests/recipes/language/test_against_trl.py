"""Each objective on the same batch as TRL's trainers: their loss and their gradients."""

import json
import warnings
from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("trl")
pytest.importorskip("peft")

from datasets import Dataset

from paceline.recipes import dpo, kto, llm_distill, llm_finetune, reward_model
from paceline.recipes.data.tiny_models import tiny_conversations, tiny_tokenizer

NUMBER, LENGTH = 6, 400
QUIET = {"report_to": [], "use_cpu": True, "bf16": False, "per_device_train_batch_size": NUMBER}


@pytest.fixture(scope="module")
def records():
    found = []
    for number, (asked, answer) in enumerate(tiny_conversations()[1][:NUMBER]):
        words = answer["content"].split()
        other = answer | {"content": " ".join(reversed(words))}
        found.append({"prompt": [asked], "chosen": [answer], "rejected": [other], "label": number % 3 > 0})
    return found


def model_of(base):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)


@contextmanager
def in_float64():
    """All of it: what float32 rounds in sums of a thousand log-probabilities depends on the processor.

    Llama's norms and TRL's head name float32 for models of any dtype.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


def theirs(kind, config, rows, base, folder, reference=None, batch=None, **settings):
    """The loss and the gradients of a trainer of TRL on all rows, or on this batch."""
    more = {} if reference is None else {"ref_model": reference}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = config(
            output_dir=str(folder), max_length=LENGTH, gradient_checkpointing=False, **QUIET, **settings
        )
        trainer = kind(
            model=model_of(base) if kind.__name__ != "RewardTrainer" else str(base),
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=tiny_tokenizer(),
            **more,
        )
    batch = next(iter(trainer.get_train_dataloader())) if batch is None else batch
    trainer.model.double().train()
    with in_float64():
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in trainer.model.named_parameters()}


def ours(recipe, rows, base, folder, change=None, see=None, **settings):
    """The same of a recipe; ``see`` gets the batch."""
    file = folder / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, [*rows, rows[0]])))  # the last is to validate on
    config = recipe.Config(
        model=str(base),
        data=file,
        validation=1 / (NUMBER + 1),
        length=LENGTH,
        batch_size=NUMBER,
        learning_rate=1e-3,
        trainer={"accelerator": "cpu", "run_dir": folder},
        **settings,
    )
    experiment = recipe.build(config)
    module = experiment.module.double().train()
    if change is not None:
        change(module)
    rows = [experiment.train.dataset[number] for number in range(len(experiment.train.dataset))]
    batch = experiment.train.collate_fn(rows)
    if see is not None:
        see({name: dict(part) if isinstance(part, dict) else part for name, part in batch.items()})
    with in_float64():
        loss = module.training_step(batch)["loss"]
        loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in module.model.named_parameters()}


def same(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=1e-7, atol=1e-7)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert (found[1][name] - gradient).norm() <= 1e-6 * gradient.norm(), name


def moved(model):
    """Another model than the reference, in the same way for both sides."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            parameter += 0.02 * torch.randn(parameter.shape, generator=draw)


@pytest.fixture
def elsewhere(base, tmp_path):
    """The model that is trained, where the reference is another: in a folder."""
    model = model_of(base)
    moved(model)
    model.save_pretrained(tmp_path / "moved")
    tiny_tokenizer().save_pretrained(tmp_path / "moved")
    return tmp_path / "moved"


@pytest.mark.parametrize(("smoothing", "packing"), [(0.0, False), (0.0, True), (0.1, False)])
def test_answers(base, records, tmp_path, smoothing, packing):
    from trl import SFTConfig, SFTTrainer

    rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in records]
    expected = theirs(SFTTrainer, SFTConfig, rows, base, tmp_path / "theirs", loss_type="nll")
    mine = [{"messages": [*row["prompt"], *row["chosen"]]} for row in records]
    more = {"packing": packing, "label_smoothing": smoothing}
    if smoothing:
        found = ours(llm_finetune, mine, base, tmp_path, **more)
        assert found[0] > expected[0]
        return
    same(ours(llm_finetune, mine, base, tmp_path, **more), expected)


@pytest.mark.parametrize(
    ("objective", "loss_type", "more"),
    [
        ("sigmoid", ["sigmoid"], {}),
        ("hinge", ["hinge"], {}),
        ("ipo", ["ipo"], {}),
        ("sigmoid", ["sigmoid", "sft"], {"sft_weight": 0.7, "sft_mean": "tokens"}),
    ],
)
def test_preferences(base, elsewhere, records, tmp_path, objective, loss_type, more):
    from trl import DPOConfig, DPOTrainer

    weights = [1.0, *([0.7] if more else [])]
    settings = {"loss_type": loss_type, "loss_weights": weights, "beta": 0.3}
    expected = theirs(
        DPOTrainer, DPOConfig, records, elsewhere, tmp_path / "theirs", model_of(base), **settings
    )

    def change(module):
        module.reference.load_state_dict(model_of(base).state_dict())

    same(ours(dpo, records, elsewhere, tmp_path, change, objective=objective, beta=0.3, **more), expected)


@pytest.mark.parametrize("objective", ["orpo", "simpo"])
def test_preferences_without_a_reference(base, records, tmp_path, objective):
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    if objective == "orpo":
        kind, config, settings = ORPOTrainer, ORPOConfig, {"beta": 0.3}
        more = {"beta": 0.3, "sft_on": "all", "sft_mean": "tokens"}
    else:
        kind, config = CPOTrainer, CPOConfig
        settings = {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.4, "cpo_alpha": 0.0}
        more = {"beta": 2.0, "gamma": 0.4}
    rows = [{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in records]
    seen = []
    found = ours(dpo, rows, base, tmp_path, see=seen.append, objective=objective, **more)
    # These trainers add tokens of their own where a chat template has put some: they get our tokens.
    batch = {}
    for name, part in seen[0].items():
        inside = (part["position_ids"] == 0).cumsum(1) == 1
        batch[f"{name}_input_ids"], batch[f"{name}_attention_mask"] = part["input_ids"], inside.long()
        batch[f"{name}_labels"] = part["targets"].roll(1, 1)
    expected = theirs(kind, config, rows, base, tmp_path / "theirs", batch=batch, **settings)
    same(found, expected)


def test_single_labels(base, elsewhere, records, tmp_path):
    from trl import KTOConfig, KTOTrainer

    rows = [
        {"prompt": row["prompt"], "completion": row["chosen"], "label": row["label"]} for row in records
    ]
    weights = {"desirable_weight": 1.3, "undesirable_weight": 0.8, "beta": 0.3}
    more = {"train_sampling_strategy": "sequential"}
    expected = theirs(
        KTOTrainer, KTOConfig, rows, elsewhere, tmp_path / "theirs", model_of(base), **weights, **more
    )

    def change(module):
        module.reference.load_state_dict(model_of(base).state_dict())

    found = ours(kto, rows, elsewhere, tmp_path, change, beta=0.3, good_weight=1.3, bad_weight=0.8)
    same(found, expected)


@pytest.mark.parametrize("center", [0.0, 0.1])
def test_rewards(base, records, tmp_path, center):
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    model.save_pretrained(tmp_path / "rewards")  # with its head, which is drawn again else
    tiny_tokenizer().save_pretrained(tmp_path / "rewards")
    rows = [{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in records]
    more = {"center_rewards_coefficient": center or None}
    expected = theirs(RewardTrainer, RewardConfig, rows, tmp_path / "rewards", tmp_path / "theirs", **more)
    same(ours(reward_model, rows, tmp_path / "rewards", tmp_path, center=center), expected)


@pytest.mark.parametrize("divergence", [0.0, 0.4, 1.0])
def test_distillation(base, elsewhere, records, tmp_path, divergence):
    from trl.experimental.gkd import GKDTrainer

    mine = [{"messages": [*row["prompt"], *row["chosen"]]} for row in records]
    seen = []
    more = {"teacher": str(elsewhere), "temperature": 1.7, "divergence": divergence, "packing": False}
    found = ours(llm_distill, mine, base, tmp_path, see=seen.append, **more)
    (batch,) = seen
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    student = model_of(base)
    teacher = model_of(elsewhere)
    with in_float64():
        with torch.no_grad():
            said = teacher(**inputs, use_cache=False).logits
        loss = GKDTrainer.generalized_jsd_loss(
            student(**inputs, use_cache=False).logits, said, batch["targets"], divergence, 1.7
        )
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in student.named_parameters()}
    same(found, (loss.detach(), gradients))
