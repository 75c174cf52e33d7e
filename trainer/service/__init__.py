"""Our model service: a Qwen2-shaped model behind an OpenAI-compatible endpoint, trained on packed rows.

model, lora, tokenizer, checkpoint         a directory in Hugging Face layout, and the network it holds
loading, master_weights                    networks of a base model at a precision; what the optimizer moves
cache → sampling → sampler                 prompts in; tokens, log-probs, policy version out
openai_api → choices → openai_answers      a request, its completions on their way, the answer
answer_stream, tool_calls                  the same as events; calls out of sampled text
endpoint, http_server                      all of that over HTTP
rows → update                              packed rows in, one optimizer step out
journal, memory_limits                     what became of each batch; what to do when memory runs out
retention, keeping                         which checkpoints may go; which serves, and that it does not go
art_plan                                   what one update is for, by the trainer or by an ART client's settings
base_version, art_service                  version 0 written once; all of it as ART's LocalBackend calls it
art_own_service                            ART's own service in its place, on GPUs
"""
