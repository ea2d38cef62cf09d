"""The promises of docs/promises, with the tests and the benchmarks that show them."""

from __future__ import annotations

from typing import NamedTuple

PARTS = (
    "readable-loop",
    "little-overhead",
    "same-numbers",
    "exact-gradients-and-metrics",
    "exact-resume",
    "one-checkpoint",
    "reliable-checkpoints",
    "failures-are-reported",
    "laptop-cpu",
    "errors-that-help",
)
"""The pages, by number from 1."""

MEASURED_ONLY = ("memory", "pause of a save")
"""The names of the rows that no test can show, as tests measure no time: benchmarks alone do."""


class Row(NamedTuple):
    """One promise.

    Attributes:
        name: For messages.
        part: The number of its page in ``PARTS``.
        promise: What the page says.
        tests: By file below tests/, the functions that show it. ``.ci/run`` runs each of them.
        measured: Benchmarks, as files or commands.
        note: What else is run, for the page.
    """

    name: str
    part: int
    promise: str
    tests: dict[str, list[str]]
    measured: tuple[str, ...] = ()
    note: str = ""


ROWS = [
    Row(
        "frames",
        1,
        "One readable training loop: `trainer/loops/training_loop.py`; at most 4 frames of the trainer "
        "between `fit()` and your `training_step`",
        {"test_frames.py": ["test_at_most_four_frames", "test_at_most_four_frames_under_every_strategy"]},
    ),
    Row(
        "overhead",
        2,
        "Little per-step overhead over a hand-written loop, also with a progress bar, TensorBoard and a "
        "logged value: 5 and 28 µs over one that makes the same checks (8 and 12 are the aim), 10 with "
        "`record=False`; the Python calls of a step are counted in CI",
        {
            "test_calls.py": [
                "test_with_everything_off",
                "test_the_record_of_a_step",
                "test_over_a_loader_of_rows",
                "test_a_logged_value_is_three_calls",
                "test_the_count_does_not_grow_with_steps_done",
            ]
        },
        ("benchmarks/overhead.py",),
    ),
    Row(
        "TensorDataset",
        2,
        "A `TensorDataset` is read a batch at a time, bit-identical to what the loader would give",
        {
            "trainer/data/test_tensor_dataset.py": [
                "test_batches_are_the_loader_s_own_and_no_row_is_read_alone",
                "test_samplers_of_all_kinds",
                "test_steps_of_several_ranks_and_from_the_middle",
            ]
        },
        ("benchmarks/loaders.py",),
    ),
    Row(
        "memory",
        2,
        "Constant memory and step time in a long run: from step 20,000 to 200,000 memory grows by 2.1 MiB "
        "(0.2 MiB of it after step 40,000); a step over 10 million samples takes as long as one over "
        "10,000",
        {},
        ("python benchmarks/soak.py --json benchmarks/results/soak.json",),
    ),
    Row(
        "start-up",
        2,
        "`from paceline import Trainer` takes as long as `import torch`, and step 1 ends at most 0.2 s "
        "after a hand-written script's; `self.log` takes 2 µs",
        {
            "test_startup.py": [
                "test_an_import_loads_nothing_heavy",
                "test_a_plain_fit_loads_nothing_heavy_that_a_loop_of_torch_does_not_load",
            ]
        },
        (
            "python benchmarks/startup.py --rounds 15 --json benchmarks/results/startup.json",
            "python benchmarks/logged.py --json benchmarks/results/logged.json",
        ),
    ),
    Row(
        "collectives and memory",
        2,
        "No more communication than the strategy itself (plus one scalar all-reduce per step where the "
        "non-finite check needs it), and the memory of a sharded model's states is what the formulas say",
        {
            "strategies/ranks/test_collectives.py": [
                "test_ddp_reduces_each_bucket_once_however_many_micro_batches",
                "test_ddp_has_as_many_collectives_as_torch_has_buckets",
                "test_fsdp_gathers_twice_a_micro_batch_and_reduces_once",
                "test_hsdp_reduces_within_its_groups_and_between_them",
                "test_zero_has_deepspeed_s_own",
            ],
            "strategies/test_sharded_memory.py": [
                "test_a_rank_holds_what_the_formula_says_before_the_update",
                "test_a_rank_holds_no_more_than_the_formula_says_between_steps",
            ],
        },
    ),
    Row(
        "a loop by hand",
        3,
        "Final weights are bit-identical to a hand-written training loop: optimizers, precisions, "
        "accumulation, clipping, schedules",
        {
            "test_parity.py": [
                "test_equals_the_hand_written_loop",
                "test_fp16_equals_the_hand_written_scaler_loop",
                "test_order_is_the_loaders_own",
            ]
        },
    ),
    Row(
        "strategies",
        3,
        "Every strategy (DDP, FSDP2, HSDP, DeepSpeed ZeRO 0 to 3) gives the weights, optimizer state and "
        "metrics of one device, on a CPU too: to 1e-12 in fp64, 1e-6 in fp32",
        {"strategies/test_parity.py": ["test_equals_one_device", "test_the_cases_are_what_they_say"]},
    ),
    Row(
        "tensor parallel",
        3,
        "So does FSDP with layers that are split over ranks (tensor parallel), to 1e-12 in fp64",
        {"strategies/layers/test_tensor_parallel.py": ["test_equals_one_device"]},
    ),
    Row(
        "Muon",
        3,
        "Muon in float32 gives the numbers of one device under every strategy, and resumes exactly; in "
        "bfloat16 it is torch's own",
        {
            "strategies/test_parity.py": ["test_equals_one_device"],
            "optimizers/test_optimizers_on_ranks.py": [
                "test_a_run_that_was_stopped_and_resumed_is_bit_identical",
                "test_muon_on_uneven_parts_equals_muon_on_one_device",
            ],
            "optimizers/test_muon.py": [
                "test_in_bfloat16_it_is_torchs_muon_and_beside_it_torchs_adamw",
            ],
        },
    ),
    Row(
        "samples of a step",
        3,
        "Given the global batch size, the samples of each step, their random augmentation and the losses "
        "are the same on 1, 2 or 3 ranks, at any micro-batch size and number of workers, also where the "
        "last step is incomplete",
        {
            "trainer/loops/test_grid.py": [
                "test_any_layout_is_the_same_run",
                "test_an_epoch_is_every_sample_once_in_full_steps_and_a_tail",
                "test_a_last_step_of_one_sample_is_that_of_one_device",
                "test_loader_workers_change_nothing_on_two_ranks",
            ],
            "trainer/data/test_streams_on_ranks.py": [
                "test_each_steps_samples_and_losses_are_those_of_one_device"
            ],
        },
        note="streams on 3 ranks: `pytest --soak`",
    ),
    Row(
        "Mixture",
        3,
        "A `Mixture` gives each dataset its share of the first n samples to within one sample, and the "
        "same samples in each step on any number of ranks and workers and after a resume, with streams too",
        {
            "trainer/data/mixtures/test_mixture.py": [
                "test_each_source_has_its_share_of_any_stretch_from_the_beginning",
                "test_workers_and_micro_batches_change_nothing",
                "test_a_run_is_resumed_exactly",
            ],
            "trainer/loops/test_grid.py": [
                "test_a_sampler_of_the_users_is_the_same_on_any_number_of_ranks",
            ],
            "trainer/data/test_streams_on_ranks.py": [
                "test_each_steps_samples_and_losses_are_those_of_one_device",
                "test_a_stream_continues_on_another_number_of_ranks",
            ],
        },
    ),
    Row(
        "check_invariance",
        3,
        "`paceline.tools.check_invariance` names the first tensor of your own code that depends on the "
        "number of ranks or the micro-batch size",
        {
            "tools/debug/test_invariance.py": [
                "test_a_sound_model_is_found_the_same",
                "test_the_first_tensor_that_differs_is_named_on_one_device",
                "test_a_sound_model_is_found_the_same_on_ranks",
                "test_the_first_tensor_that_differs_is_named_on_all_ranks",
            ]
        },
    ),
    Row(
        "token weights",
        4,
        "Token-weighted losses give the gradient of the one big batch under every strategy",
        {
            "strategies/test_token_weights.py": [
                "test_two_ranks_with_accumulation_are_one_device_with_none",
                "test_micro_batches_on_one_device_are_one",
            ]
        },
    ),
    Row(
        "evaluation",
        4,
        "Evaluation counts each sample once on any number of ranks; predictions are in the data's order, "
        "or are written to files as they are computed",
        {
            "trainer/loops/test_grid.py": [
                "test_every_sample_counts_once",
                "test_predictions_are_in_the_order_of_the_data_on_every_rank",
            ],
            "trainer/loops/test_predictions_on_ranks.py": [
                "test_every_rank_has_all_predictions_in_the_datas_order",
                "test_each_rank_writes_its_own_parts_and_no_rank_the_whole",
            ],
        },
    ),
    Row(
        "resume",
        5,
        "Exact resume: stopped after any step, on one device or several, a run ends bit-identical to one "
        "that was not stopped: shuffle, workers, augmentation, dropout, schedules",
        {
            "test_resume.py": ["test_stop_after_any_step_and_resume", "test_stop_and_resume_with"],
            "trainer/checkpoint/test_resume_on_ranks.py": [
                "test_weights_and_optimizer_state_are_bit_identical",
                "test_every_row_of_metrics_is_bit_identical",
                "test_the_rest_of_the_state_is_the_same",
            ],
            "trainer/checkpoint/test_resume_on_three_ranks.py": ["test_a_resumed_run_ends_bit_identical"],
        },
    ),
    Row(
        "seek",
        5,
        "Starting in the middle of an epoch of 10 million samples takes 1.1 times the sampler's own time "
        "and 79 MB more",
        {
            "trainer/data/test_seek.py": [
                "test_it_takes_less_than_200_megabytes_beyond_the_samplers_own",
                "test_no_sample_before_the_position_is_read",
            ]
        },
        ("python benchmarks/seek.py --json benchmarks/results/seek.json",),
    ),
    Row(
        "one checkpoint",
        6,
        "One checkpoint for every strategy: what any of them wrote on 1, 2 or 3 ranks, each of them reads "
        "bit for bit, optimizer state included",
        {
            "strategies/test_checkpoint_matrix.py": [
                "test_what_was_read_is_written_again_bit_for_bit",
                "test_what_each_wrote_another_reads_bit_for_bit",
                "test_the_ring_has_every_layout_as_a_writer_and_every_strategy_as_a_reader",
                "test_training_continues_as_on_one_device",
            ]
        },
        note="every pair: `pytest --soak`",
    ),
    Row(
        "checkpoints",
        7,
        "Reliable checkpoints: a run killed at any file operation of a save resumes bit-identical; every "
        "flipped byte is detected and the file named; the previous checkpoint is used when the newest is "
        "damaged; no pickle",
        {
            "faults/test_crash_while_saving.py": [
                "test_the_crashes_are_at_all_operations_of_a_save_and_of_deletions",
                "test_after_a_crash_a_run_resumes_and_ends_bit_identical",
            ],
            "faults/test_checkpoint_damage.py": [
                "test_a_byte_flipped_is_found_and_named_wherever_it_is",
                "test_auto_and_latest_fall_back_and_say_so_and_a_path_raises",
                "test_a_pickle_in_any_slot_runs_nothing_and_is_named",
            ],
        },
    ),
    Row(
        "pause of a save",
        7,
        "Background saves stop training for about 12 % of the time of a synchronous save (10 % is the "
        "aim), and verification adds nothing to a load from the disk (0.13 s per GB where the files are in "
        "the page cache)",
        {},
        ("python benchmarks/checkpoint.py --rounds 9 --json benchmarks/results/checkpoint.json",),
    ),
    Row(
        "signals",
        8,
        "SIGTERM on any rank, at any moment, saves a checkpoint and stops; the resumed run is "
        "bit-identical",
        {
            "faults/test_signals.py": [
                "test_every_named_place_had_its_signal_on_each_rank",
                "test_all_ranks_stop_at_one_step_which_is_saved",
                "test_resumed_it_ends_as_a_run_that_nothing_happened_to",
            ]
        },
    ),
    Row(
        "not finite",
        8,
        "A NaN or infinity, in a loss or a gradient of any rank, stops all ranks before it reaches the "
        "weights; rank, step and sample are named",
        {
            "faults/test_nonfinite.py": [
                "test_all_ranks_raise_before_the_update",
                "test_step_rank_and_samples_are_named",
            ]
        },
    ),
    Row(
        "hangs and restarts",
        8,
        "A hung or dead rank is named within its deadline, and the root cause is printed last; "
        "`max_restarts` resumes exactly",
        {
            "faults/test_watchdog.py": [
                "test_a_rank_that_sleeps_is_named_last_with_the_line_it_is_in",
                "test_a_rank_that_is_stopped_is_named",
            ],
            "faults/test_root_cause.py": [
                "test_the_users_traceback_is_printed_last",
                "test_a_rank_that_dies_is_named_last_with_its_signal",
            ],
            "faults/test_restarts.py": ["test_two_ranks_that_fail_twice_end_as_if_nothing_had_happened"],
        },
    ),
    Row(
        "replay",
        8,
        "Any step of any run can be run again, alone, with its samples and random draws: `paceline replay "
        "RUN --step k`",
        {
            "tools/debug/test_replay.py": [
                "test_a_healthy_step_is_reported_with_the_losses_it_had",
                "test_losses_are_those_of_the_run_to_the_bit",
                "test_two_ranks_losses_come_again_on_one_device",
            ]
        },
    ),
    Row(
        "launch",
        9,
        "`python train.py` starts its ranks; Ctrl-C, SIGTERM or a killed launcher leave no process running",
        {
            "strategies/launch/test_launch.py": [
                "test_a_plain_script_trains_on_its_ranks_and_ends_with_0",
                "test_a_signal_stops_all_ranks_at_one_step_with_a_checkpoint",
                "test_no_rank_outlives_a_killed_launcher",
                "test_ctrl_c_ends_ranks_that_have_not_begun_to_train",
            ]
        },
    ),
    Row(
        "notebooks",
        9,
        "a notebook forks its ranks: the numbers of a script, the trained module back, no process left; "
        "its stop button saves, and the cell continues exactly",
        {
            "strategies/launch/test_notebook.py": [
                "test_forked_ranks_give_the_numbers_of_a_script_s_ranks",
                "test_after_it_the_notebook_has_the_run_and_the_whole_module",
                "test_the_stop_button_stops_in_order_and_the_same_cell_continues",
                "test_the_stop_button_stops_all_ranks_in_order_and_the_cell_continues",
            ],
            "strategies/launch/test_forked_ranks.py": [
                "test_no_rank_outlives_a_killed_program",
                "test_the_module_and_the_trainer_are_those_of_the_ranks",
            ],
        },
    ),
    Row(
        "doctor",
        9,
        "`paceline doctor` finds a wrong collective, data order, step or checkpoint, a rank that hangs, "
        "and a machine that is not fit to train, and names a cure",
        {
            "doctor/test_examination.py": ["test_a_strategy_in_order", "test_a_sick_strategy"],
            "doctor/test_machine_checks.py": [
                "test_a_folder_without_space",
                "test_too_few_files_for_loader_workers",
                "test_shared_memory",
                "test_threads",
                "test_a_loader_worker_hands_over_a_large_tensor",
            ],
        },
    ),
    Row(
        "mistakes",
        10,
        "A mistake is reported before compute, in at most 12 lines",
        {
            "test_mistakes.py": [
                "test_no_configure_optimizers",
                "test_optimizer_over_some_parameters_names_the_others",
                "test_trainer_arguments",
                "test_monitor_that_is_never_logged",
                "test_what_is_printed_is_short_and_the_users_own",
            ],
            "test_mistakes_of_beginners.py": ["test_the_mistake_is_answered"],
            "trainer/test_wrong_items.py": [
                "test_a_loader_that_is_none_is_named_with_its_place",
                "test_an_optimizer_or_schedule_that_is_none_is_named_with_its_place",
                "test_a_parameter_group_that_is_none_is_named_with_its_place",
            ],
        },
    ),
    Row(
        "plugins",
        10,
        "Callbacks, loggers and strategies of other packages are imported when a user names them, and not "
        "before; `check_strategy` names the promise that a strategy breaks",
        {
            "test_plugins.py": [
                "test_nothing_is_searched_before_a_name_is_given",
                "test_a_callback_by_name",
                "test_a_logger_by_name",
                "test_a_strategy_by_name_computes_and_is_recorded",
                "test_the_command_lists_without_importing",
            ],
            "test_plugin_package.py": ["test_the_installed_package_is_used_by_name"],
            "testing/test_check_strategy.py": ["test_a_broken_strategy_fails_by_the_right_promise"],
        },
    ),
]
