"""Files of LLaMA-Factory and Axolotl as their documentations have them, and what they become."""

from __future__ import annotations

from typing import Any, NamedTuple


class Example(NamedTuple):
    """A file.

    Attributes:
        text: Its content.
        recipe: Ours.
        settings: Those it has at least.
        trainer: Arguments of the Trainer, all of them.
    """

    text: str
    recipe: str
    settings: dict[str, Any]
    trainer: dict[str, Any]


INFO = {
    "sums": {"file_name": "sums.json"},
    "chats": {
        "file_name": "chats.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "dialog", "system": "rules"},
        "tags": {"user_tag": "person", "assistant_tag": "bot"},
    },
    "openai": {"file_name": "openai.json", "formatting": "openai", "columns": {"messages": "messages"}},
    "pairs": {
        "file_name": "pairs.json",
        "ranking": True,
        "columns": {"prompt": "question", "chosen": "good", "rejected": "bad"},
    },
    "judged": {
        "file_name": "judged.json",
        "columns": {"prompt": "instruction", "response": "output", "kto_tag": "liked"},
    },
    "articles": {"file_name": "articles.json", "columns": {"prompt": "body"}},
    "of_hub": {"hf_hub_url": "someone/sums", "subset": "large", "split": "validation", "num_samples": 50},
    "seen": {"file_name": "seen.json", "columns": {"prompt": "q", "images": "pictures"}},
}
"""``data/dataset_info.json``."""

_RUN = """
output_dir: saves/run
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
"""
_ARGUMENTS = {
    "run_dir": "saves/run",
    "log_every": 10,
    "precision": "bf16",
    "accumulate": 8,
    "callbacks": [{"class": "Checkpoint", "every": 500}],
}
_COSINE = {"scheduler": {"class": "cosine", "warmup_start": 0.0}, "warmup": "10%"}

LLAMA_FACTORY = {
    "lora": Example(
        f"""
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: sums,chats
template: qwen3_nothink
cutoff_len: 2048
max_samples: 1000
preprocessing_num_workers: 16
dataloader_num_workers: 4
learning_rate: 1.0e-4
val_size: 0.1
eval_strategy: steps
eval_steps: 200
{_RUN}""",
        "llm-finetune",
        {
            "model": "Qwen/Qwen3-4B-Instruct-2507",
            "method": "lora",
            "lora_rank": 8,
            "lora_alpha": 16.0,
            "length": 2048,
            "max_samples": 1000,
            "workers": 4,
            "learning_rate": 1e-4,
            "packing": False,
            "dtype": "bfloat16",
            "gradient_checkpointing": True,
            "batch_size": 1,
            "epochs": 3,
            "validation": 0.1,
            "data": [
                {"path": "data/sums.json", "form": "alpaca"},
                {
                    "path": "data/chats.jsonl",
                    "form": "sharegpt",
                    "columns": {"conversations": "dialog", "system": "rules"},
                    "roles": {"person": "user", "bot": "assistant"},
                },
            ],
            **_COSINE,
        },
        {
            **_ARGUMENTS,
            "validate_every": 200,
            "callbacks": [{"class": "Checkpoint", "every": 500, "monitor": "val/loss"}],
        },
    ),
    "qlora": Example(
        f"""
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
quantization_bit: 4
quantization_method: bnb
double_quantization: false
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_alpha: 64
lora_dropout: 0.05
lora_target: q_proj,v_proj
additional_target: embed_tokens,lm_head
loraplus_lr_ratio: 16.0
use_dora: true
dataset: openai
dataset_dir: data
template: llama3
cutoff_len: 1024
packing: true
neat_packing: true
optim: paged_adamw_8bit
adam_beta2: 0.95
flash_attn: fa2
learning_rate: 2.0e-4
neftune_noise_alpha: 5
{_RUN}""",
        "llm-finetune",
        {
            "load_in_4bit": True,
            "lora_alpha": 64.0,
            "lora_dropout": 0.05,
            "lora_targets": ["q_proj", "v_proj"],
            "modules_to_save": ["embed_tokens", "lm_head"],
            "lora_plus_ratio": 16.0,
            "lora_dora": True,
            "packing": True,
            "neftune_alpha": 5.0,
            "optimizer": {"class": "AdamW8bit", "betas": [0.9, 0.95]},
            "data": [{"path": "data/openai.json", "form": "messages"}],
            "validation": 0,
        },
        _ARGUMENTS,
    ),
    "full, ZeRO 3": Example(
        f"""
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: sft
do_train: true
finetuning_type: full
deepspeed: data/ds_z3.json
dataset: of_hub
template: qwen3
mask_history: true
weight_decay: 0.01
max_grad_norm: 0.5
seed: 1234
eval_dataset: sums
per_device_eval_batch_size: 1
{_RUN}""",
        "llm-finetune",
        {
            "method": "full",
            "train_on": "last",
            "weight_decay": 0.01,
            "learning_rate": 5e-5,
            "length": 2048,
            "data": [
                {
                    "path": "someone/sums",
                    "form": "alpaca",
                    "name": "large",
                    "split": "validation",
                    "samples": 50,
                }
            ],
            "validation": [{"path": "data/sums.json", "form": "alpaca"}],
        },
        {
            **_ARGUMENTS,
            "clip_grad_norm": 0.5,
            "seed": 1234,
            "strategy": {"class": "DeepSpeed", "config": "data/ds_z3.json"},
            "callbacks": [{"class": "Checkpoint", "every": 500, "monitor": "val/loss"}],
        },
    ),
    "freeze": Example(
        f"""
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: sft
do_train: true
finetuning_type: freeze
freeze_trainable_layers: 8
freeze_trainable_modules: all
freeze_extra_modules: lm_head
pure_bf16: true
dataset: sums
learning_rate: 5.0e-6
{_RUN}""",
        "llm-finetune",
        {"method": "freeze", "train_layers": 8, "train_modules": ["lm_head"], "dtype": "bfloat16"},
        {**_ARGUMENTS, "precision": "bf16-true"},
    ),
    "pretraining": Example(
        f"""
model_name_or_path: Qwen/Qwen3-4B
stage: pt
do_train: true
finetuning_type: full
dataset: articles
streaming: true
max_steps: 1000
learning_rate: 1.0e-5
{_RUN}""",
        "llm-finetune",
        {
            "train_on": "all",
            "packing": True,
            "streaming": True,
            "data": [{"path": "data/articles.json", "form": "text", "columns": {"text": "body"}}],
        },
        {**_ARGUMENTS, "max_steps": 1000, "max_epochs": None},
    ),
    "dpo": Example(
        f"""
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: dpo
do_train: true
finetuning_type: lora
lora_target: all
pref_beta: 0.2
pref_loss: simpo
simpo_gamma: 1.0
pref_ftx: 0.1
dataset: pairs
template: qwen3
learning_rate: 5.0e-6
val_size: 0.1
{_RUN}""",
        "dpo",
        {
            "objective": "simpo",
            "beta": 0.2,
            "gamma": 1.0,
            "sft_weight": 0.1,
            "data": [
                {
                    "path": "data/pairs.json",
                    "columns": {"instruction": "question", "chosen": "good", "rejected": "bad"},
                }
            ],
        },
        {**_ARGUMENTS, "callbacks": [{"class": "Checkpoint", "every": 500, "monitor": "val/accuracy"}]},
    ),
    "kto": Example(
        f"""
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: kto
do_train: true
finetuning_type: lora
pref_beta: 0.1
kto_chosen_weight: 1.5
dataset: judged
learning_rate: 5.0e-6
{_RUN}""",
        "kto",
        {
            "beta": 0.1,
            "good_weight": 1.5,
            "batch_size": 1,
            "data": [{"path": "data/judged.json", "form": "alpaca", "columns": {"label": "liked"}}],
        },
        _ARGUMENTS,
    ),
    "reward": Example(
        f"""
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: rm
do_train: true
finetuning_type: lora
lora_target: all
dataset: pairs
learning_rate: 1.0e-4
{_RUN}""",
        "reward-model",
        {"method": "lora", "learning_rate": 1e-4},
        _ARGUMENTS,
    ),
}

_AXOLOTL_RUN = """
output_dir: ./outputs/out
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 2
lr_scheduler: cosine
learning_rate: 0.0002
warmup_ratio: 0.1
bf16: auto
tf32: true
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
resume_from_checkpoint:
logging_steps: 1
attn_implementation: flash_attention_2
saves_per_epoch: 2
wandb_project: sums
wandb_entity:
wandb_name:
weight_decay: 0.0
dataset_prepared_path: last_run_prepared
special_tokens:
  pad_token: "<|end_of_text|>"
"""
_AXOLOTL_ARGUMENTS = {
    "run_dir": "./outputs/out",
    "accumulate": 4,
    "log_every": 1,
    "precision": "bf16",
    "fp32_precision": "tf32",
    "loggers": [{"class": "WandB", "project": "sums"}],
    "callbacks": [{"class": "Checkpoint", "every": "0.5ep"}],
}
_LORA = """
adapter: lora
lora_model_dir:
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
"""

AXOLOTL = {
    "lora": Example(
        f"""
base_model: NousResearch/Llama-3.2-1B
model_type: LlamaForCausalLM
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
    split: train[:10%]
val_set_size: 0.1
evals_per_epoch: 4
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
optimizer: adamw_8bit
load_in_4bit: false
{_LORA}{_AXOLOTL_RUN}""",
        "llm-finetune",
        {
            "model": "NousResearch/Llama-3.2-1B",
            "method": "lora",
            "lora_rank": 32,
            "lora_alpha": 16.0,
            "lora_dropout": 0.05,
            "packing": True,
            "too_long": "drop",
            "optimizer": "AdamW8bit",
            "dtype": "bfloat16",
            "validation": 0.1,
            "chat_template": "plain",
            "data": [{"path": "teknium/GPT4-LLM-Cleaned", "split": "train[:10%]", "form": "alpaca"}],
            **_COSINE,
        },
        {
            **_AXOLOTL_ARGUMENTS,
            "validate_every": "0.25ep",
            "callbacks": [{"class": "Checkpoint", "every": "0.5ep", "monitor": "val/loss"}],
        },
    ),
    "qlora": Example(
        f"""
base_model: Qwen/Qwen3-8B
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_alpha: 32
lora_target_modules: [q_proj, v_proj]
lora_modules_to_save: [embed_tokens, lm_head]
peft_use_rslora: true
chat_template: qwen3
datasets:
  - path: chats.jsonl
    ds_type: json
    type: chat_template
    field_messages: dialog
    message_property_mappings:
      role: from
      content: value
    roles:
      user: [person, human]
      assistant: [bot]
    roles_to_train: [assistant]
    train_on_eos: turn
test_datasets:
  - path: others.jsonl
    type: chat_template
sequence_len: 4096
sample_packing: false
optimizer: paged_adamw_8bit
early_stopping_patience: 3
{_AXOLOTL_RUN}""",
        "llm-finetune",
        {
            "load_in_4bit": True,
            "lora_targets": ["q_proj", "v_proj"],
            "lora_rslora": True,
            "modules_to_save": ["embed_tokens", "lm_head"],
            "data": [
                {
                    "path": "chats.jsonl",
                    "form": "messages",
                    "roles": {"person": "user", "bot": "assistant"},
                    "columns": {"messages": "dialog"},
                }
            ],
            "validation": [{"path": "others.jsonl", "form": "messages"}],
        },
        {
            **_AXOLOTL_ARGUMENTS,
            "callbacks": [
                {"class": "EarlyStopping", "monitor": "val/loss", "patience": 3},
                {"class": "Checkpoint", "every": "0.5ep", "monitor": "val/loss"},
            ],
        },
    ),
    "full, FSDP": Example(
        f"""
base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: json
    data_files: [a.jsonl, b.jsonl]
    type: chat_template
val_set_size: 0.0
sequence_len: 4096
train_on_inputs: true
excess_length_strategy: truncate
optimizer: adamw_torch_fused
max_grad_norm: 1.0
fsdp_version: 2
fsdp_config:
  offload_params: false
  state_dict_type: FULL_STATE_DICT
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
  reshard_after_forward: true
  activation_checkpointing: true
tensor_parallel_size: 2
{_AXOLOTL_RUN}""",
        "llm-finetune",
        {
            "method": "full",
            "train_on": "all",
            "too_long": "cut",
            "dtype": "float32",
            "data": [{"path": f"{name}.jsonl", "form": "messages"} for name in "ab"],
            "validation": 0,
        },
        {
            **_AXOLOTL_ARGUMENTS,
            "clip_grad_norm": 1.0,
            "strategy": {"class": "FSDP", "activation_checkpointing": True, "tensor": 2},
        },
    ),
    "pretraining": Example(
        f"""
base_model: gpt-two
pretraining_dataset:
  - path: someone/web
    name: en
    type: pretrain
    text_column: body
    split: train
max_steps: 100
sequence_len: 1024
sample_packing: true
pretrain_multipack_attn: true
optimizer: adamw_torch
{_AXOLOTL_RUN}""",
        "llm-finetune",
        {
            "train_on": "all",
            "too_long": "cut",
            "streaming": True,
            "data": [{"path": "someone/web", "name": "en", "form": "text", "columns": {"text": "body"}}],
        },
        {**_AXOLOTL_ARGUMENTS, "precision": "bf16-true", "max_steps": 100, "max_epochs": None},
    ),
    "dpo": Example(
        f"""
base_model: meta-llama/Llama-3.1-8B-Instruct
rl: dpo
rl_beta: 0.2
dpo_label_smoothing: 0.1
datasets:
  - path: pairs.jsonl
    type: chat_template.default
    field_messages: conversation
    field_chosen: good
    field_rejected: bad
    message_property_mappings:
      role: role
      content: content
  - path: others.jsonl
    type: chatml.intel
sequence_len: 2048
optimizer: adamw_torch
{_LORA}{_AXOLOTL_RUN}""",
        "dpo",
        {
            "objective": "sigmoid",
            "beta": 0.2,
            "label_smoothing": 0.1,
            "data": [
                {
                    "path": "pairs.jsonl",
                    "columns": {"conversations": "conversation", "chosen": "good", "rejected": "bad"},
                },
                {"path": "others.jsonl", "columns": {"instruction": "question"}},
            ],
        },
        _AXOLOTL_ARGUMENTS,
    ),
    "kto": Example(
        f"""
base_model: meta-llama/Llama-3.1-8B-Instruct
rl: kto
kto_desirable_weight: 0.2
kto_undesirable_weight: 1.0
datasets:
  - path: judged.jsonl
    type: llama3.ultra
remove_unused_columns: false
sequence_len: 2048
optimizer: adamw_torch
{_LORA}{_AXOLOTL_RUN}""",
        "kto",
        {
            "good_weight": 0.2,
            "bad_weight": 1.0,
            "data": [
                {
                    "path": "judged.jsonl",
                    "form": "alpaca",
                    "columns": {"instruction": "prompt", "output": "completion"},
                }
            ],
        },
        _AXOLOTL_ARGUMENTS,
    ),
    "orpo": Example(
        f"""
base_model: mistralai/Mistral-7B-v0.1
rl: orpo
orpo_alpha: 0.3
chat_template: chatml
datasets:
  - path: someone/pairs
    type: chat_template.argilla
sequence_len: 1024
optimizer: adamw_bnb_8bit
{_LORA}{_AXOLOTL_RUN}""",
        "dpo",
        {
            "objective": "orpo",
            "beta": 0.3,
            "sft_on": "all",
            "sft_mean": "tokens",
            "chat_template": "chatml",
            "data": [{"path": "someone/pairs"}],
        },
        _AXOLOTL_ARGUMENTS,
    ),
    "reward": Example(
        f"""
base_model: Qwen/Qwen2.5-0.5B
model_type: AutoModelForSequenceClassification
num_labels: 1
reward_model: true
center_rewards_coefficient: 0.01
chat_template: qwen_25
datasets:
  - path: someone/pairs
    type: bradley_terry.chat_template
sequence_len: 1024
optimizer: adamw_torch
{_AXOLOTL_RUN}""",
        "reward-model",
        {
            "method": "full",
            "center": 0.01,
            "data": [{"path": "someone/pairs", "columns": {"instruction": "input"}}],
        },
        {**_AXOLOTL_ARGUMENTS, "precision": "bf16-true"},
    ),
}
FILES = {
    **{f"LLaMA-Factory, {name}": one for name, one in LLAMA_FACTORY.items()},
    **{f"Axolotl, {name}": one for name, one in AXOLOTL.items()},
}
