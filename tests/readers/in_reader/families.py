"""What models of six families sample when they call a tool, and a tokenizer that has their special tokens.

Runs in a reader's environment, without rollbus. The texts are the formats that the models were trained on.
"""

import re
from pathlib import Path

_XML = (
    "<tool_call>\n<function=refund>\n<parameter=order>\n7\n</parameter>\n<parameter=rate>\n1.7\n</parameter>\n"
    "<parameter=when>\n2026-01-01\n</parameter>\n</function>\n</tool_call><|im_end|>"
)
_OBJECT = '{"order": 7, "rate": 1.7, "when": "2026-01-01"}'
SAMPLED = {
    "qwen2_5": f'<tool_call>\n{{"name": "refund", "arguments": {_OBJECT}}}\n</tool_call><|im_end|>',
    "llama3_1": f'{{"name": "refund", "parameters": {_OBJECT}}}<|eot_id|>',
    "gptoss": f" to=functions.refund<|channel|>commentary json<|message|>{_OBJECT}<|call|>",
    "glm4moe": (
        "\n<think></think>\n<tool_call>refund\n<arg_key>order</arg_key>\n<arg_value>7</arg_value>\n"
        "<arg_key>rate</arg_key>\n<arg_value>1.7</arg_value>\n"
        "<arg_key>when</arg_key>\n<arg_value>2026-01-01</arg_value>\n</tool_call>"
    ),
    "qwen3_5_think": f"\n</think>\n\n{_XML}",
    "gemma4_v5": '<|tool_call>call:refund{order:7,rate:1.7,when:<|"|>2026-01-01<|"|>}<tool_call|>',
}
"""By TRL's name of the chat template."""
_SPECIAL = re.compile(r"<\|[^<>\s]{0,20}\|?>|<[^<>\s]{1,20}\|>|</?(?:tool_call|think|arg_key|arg_value)>")
_OTHERS = ("<pad>", "<s>", "</s>")


def template_of(family: str) -> str:
    """Return the chat template as TRL ships it."""
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{family}.jinja").read_text()


def make_tokenizer(family: str, template: str | None = None):  # type: ignore[no-untyped-def]
    """Return a tokenizer of bytes and of the family's special tokens, with TRL's chat template or another."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = template or template_of(family)
    special = sorted({*_OTHERS, *_SPECIAL.findall(text), *_SPECIAL.findall(SAMPLED.get(family, ""))})
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=text,
        additional_special_tokens=special,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=1 << 30,
    )


def sampled_ids(tokenizer, family: str) -> list[int]:  # type: ignore[no-untyped-def]
    """Return the tokens that the model sampled."""
    return list(tokenizer(SAMPLED[family], add_special_tokens=False)["input_ids"])
