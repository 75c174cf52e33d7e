"""Every field of ART's `TrainerArgs`, which the toolkit's plugin declares under `training`: used, or refused by name.

The plugin itself reads none of them. A field that says nothing about an update here is refused with what there is
instead, so that no one believes it is in force.
"""

from collections.abc import Iterable, Mapping

SETTING_BY_FIELD = {
    "learning_rate": "learning_rate",
    "beta": "kl_coefficient",
    "max_grad_norm": "max_grad_norm",
    "weight_decay": "weight_decay",
    "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2",
    "seed": "seed",
}
"""Fields that are used, each with its setting below `trainer: train:`."""
FIELDS_BY_REPLACEMENT = {
    "`finetuning.num_epochs`": "num_train_epochs max_steps",
    "`rollbus: groups_per_step`; a step takes whole groups": (
        "per_device_train_batch_size per_gpu_train_batch_size gradient_accumulation_steps auto_find_batch_size "
        "dataloader_drop_last group_by_length length_column_name"
    ),
    "`num_generations` of the builder": "num_generations",
    "`temperature` and `max_tokens` of the model under `llms`": "temperature max_completion_length",
    "`init_args.max_seq_length` of the backend": "max_prompt_length",
    "the evaluator named by `reward_function`": "reward_weights",
    "`finetuning.output_dir`": "output_dir overwrite_output_dir logging_dir run_name",
    "validation, by `--validation_dataset` and `--validation_interval`": (
        "do_train do_eval do_predict eval_strategy eval_steps eval_delay eval_on_start eval_accumulation_steps "
        "eval_do_concat_batches eval_use_gather_object per_device_eval_batch_size per_gpu_eval_batch_size "
        "batch_eval_metrics prediction_loss_only include_inputs_for_metrics include_for_metrics label_names "
        "load_best_model_at_end metric_for_best_model greater_is_better"
    ),
    "checkpoints of the server, by `delete_old_checkpoints` and `keep_checkpoints`": (
        "save_strategy save_steps save_total_limit save_safetensors save_on_each_node save_only_model"
    ),
    "`rollbus finetune resume`": (
        "resume_from_checkpoint restore_callback_states_from_checkpoint ignore_data_skip past_index"
    ),
    "`rollbus log-to` and the files in `output_dir`": (
        "log_level log_level_replica log_on_each_node logging_strategy logging_first_step logging_steps "
        "logging_nan_inf_filter report_to disable_tqdm log_completions skip_memory_metrics debug "
        "include_tokens_per_second include_num_input_tokens_seen"
    ),
    "the folder of weights that `rollbus finetune show` names, and the hub's own client": (
        "push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token hub_model_id hub_strategy "
        "hub_token hub_private_repo hub_always_push"
    ),
    "nothing: the rate is constant": "lr_scheduler_type lr_scheduler_kwargs warmup_ratio warmup_steps",
    "nothing: the optimizer is AdamW over all weights that train": (
        "optim optim_args optim_target_modules adafactor adam_epsilon neftune_noise_alpha label_smoothing_factor"
    ),
    "`kl_reference_version` of `trainer: train:`": "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
    "`trainer: train: aggregation`": "average_tokens_across_devices",
    "the server's own settings: where and how it computes": (
        "no_cuda use_cpu use_mps_device jit_mode_eval use_ipex bf16 fp16 fp16_opt_level half_precision_backend "
        "fp16_backend bf16_full_eval fp16_full_eval tf32 full_determinism data_seed local_rank ddp_backend "
        "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_timeout tpu_num_cores "
        "tpu_metrics_debug fsdp fsdp_min_num_params fsdp_config fsdp_transformer_layer_cls_to_wrap "
        "accelerator_config deepspeed mp_parameters gradient_checkpointing gradient_checkpointing_kwargs "
        "torch_compile torch_compile_backend torch_compile_mode torchdynamo torch_empty_cache_steps use_liger_kernel "
        "ds3_gather_for_generation model_init_kwargs ray_scope use_legacy_prediction_loop remove_unused_columns "
        "dataloader_num_workers dataloader_prefetch_factor dataloader_pin_memory dataloader_persistent_workers"
    ),
}
"""Fields that are refused, by what there is instead; their names are separated by spaces."""
REPLACEMENT_BY_FIELD: Mapping[str, str] = {
    name: replacement for replacement, names in FIELDS_BY_REPLACEMENT.items() for name in names.split()
}


def refusals(names: Iterable[str]) -> dict[str, str]:
    """Return a message for each of the names that is refused."""
    return {
        name: f"is not used here; instead: {REPLACEMENT_BY_FIELD[name]}"
        for name in names
        if name in REPLACEMENT_BY_FIELD
    }
