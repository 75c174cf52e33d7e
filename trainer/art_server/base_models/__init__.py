"""A model that somebody has comes in, as a Hugging Face folder, a GGUF file or a package; a base model goes out.

Read `importing` first, then `source_files` (whether there is a model), `gguf`, `merging` (a PEFT adapter into its base)
and `packaged`. Nothing is fetched from a hub.
"""
