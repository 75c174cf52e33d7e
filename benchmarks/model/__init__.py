"""The model service compared with what others run: a language model's sampler and its GRPO step on the same weights."""
