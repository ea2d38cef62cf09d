"""Settings of TRL, transformers, LLaMA-Factory and Axolotl, written as settings of our recipes."""

import dataclasses

import pytest

from paceline import PacelineError
from paceline.commands.config.init import _settings_of
from paceline.commands.targets import recipe_modules
from paceline.config.load import load
from paceline.other_trainers.fine_tuning import OF_RECIPES, setting_here

RECIPES = ("llm-finetune", "dpo", "kto", "reward-model")
OF_TRL = {
    "llm-finetune": """
        learning_rate model_init_kwargs router_aux_loss_coef trust_remote_code chat_template_path
        dataset_text_field dataset_kwargs dataset_num_proc eos_token max_length truncation_mode
        shuffle_dataset packing packing_strategy padding_free pad_to_multiple_of eval_packing
        completion_only_loss assistant_only_loss activation_offloading pad_token logging_steps
        gradient_checkpointing bf16 lr_scheduler_kwargs use_liger_kernel torch_empty_cache_steps
        model_name_or_path model_revision dtype attn_implementation use_peft lora_r lora_alpha lora_dropout
        lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora
        load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage
        dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming datasets
        streaming test_split_size ignore_bias_buffers
    """,
    "dpo": """
        learning_rate model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout
        dataset_num_proc max_length truncation_mode padding_free pad_to_multiple_of
        precompute_ref_log_probs precompute_ref_batch_size loss_type loss_weights ld_alpha
        f_divergence_type f_alpha_divergence_coef label_smoothing beta use_weighting discopop_tau
        activation_offloading sync_ref_model ref_model_mixup_alpha ref_model_sync_steps pad_token
        max_completion_length cpo_alpha simpo_gamma alpha generate_during_eval is_encoder_decoder
        padding_value
    """,
    "kto": """
        learning_rate train_sampling_strategy model_init_kwargs trust_remote_code router_aux_loss_coef
        disable_dropout dataset_num_proc max_length pad_to_multiple_of precompute_ref_log_probs
        precompute_ref_batch_size beta desirable_weight undesirable_weight activation_offloading
        sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
    """,
    "reward-model": """
        learning_rate model_init_kwargs trust_remote_code chat_template_path disable_dropout
        dataset_num_proc eos_token max_length pad_to_multiple_of center_rewards_coefficient
        activation_offloading pad_token
    """,
}
"""The fields of ``SFTConfig``, with those of ``ModelConfig`` and ``ScriptArguments``; of ``DPOConfig``,
``ORPOConfig`` and ``CPOConfig``; of ``KTOConfig``; of ``RewardConfig``: what TRL 1.16 has."""


@pytest.mark.parametrize("recipe", OF_TRL)
def test_each_field_of_trl_is_a_setting_or_answered(recipe):
    known = frozenset(_settings_of(recipe))
    open_names = [
        one for one in OF_TRL[recipe].split() if one not in known and not setting_here(one, known)
    ]
    assert open_names == []


def test_each_training_argument_of_transformers_is_a_setting_or_answered():
    transformers = pytest.importorskip("transformers")
    known = frozenset(_settings_of("llm-finetune"))
    fields = [one.name for one in dataclasses.fields(transformers.TrainingArguments)]
    assert [one for one in fields if one not in known and not setting_here(one, known)] == []


def test_answers_name_settings_that_recipes_have():
    known = frozenset({name for recipe in RECIPES for name in _settings_of(recipe)})
    later = {"added_tokens", "revision", "hub"}
    assert [name for name in OF_RECIPES if not setting_here(name, known | later)] == []
    assert set(OF_RECIPES) & known <= {"load_in_8bit", "trust_remote_code"}


@pytest.mark.parametrize(
    ("recipe", "setting", "said"),
    [
        ("llm-finetune", "num_train_epochs=3", "use epochs"),
        ("llm-finetune", "per_device_train_batch_size=4", "use batch_size"),
        ("llm-finetune", "packing_strategy=bfd", "use packing: rows are filled by length"),
        ("llm-finetune", "gradient_accumulation_steps=8", "use trainer.accumulate"),
        ("llm-finetune", "lora_r=8", "use lora_rank"),
        ("llm-finetune", "bf16=true", "use trainer.precision: bf16"),
        ("dpo", "loss_type=ipo", "use objective"),
        ("kto", "desirable_weight=2", "use good_weight"),
        ("digits", "num_train_epochs=3", "use epochs"),
        ("digits", "lorarank=3", "no such key"),
    ],
)
def test_a_key_of_theirs_is_answered_with_ours(recipe, setting, said):
    with pytest.raises(PacelineError) as raised:
        load(recipe, settings=[setting], recipes=recipe_modules()).checked()
    assert said in str(raised.value)
