"""A small byte-level tokenizer with a ChatML template, for models that the project builds itself.

Any text encodes (256 byte symbols), lower-case words merge, and everything else stays one symbol per byte, so
that digits, capitals and newlines are tokens of their own: a board of a game reads cell by cell.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.service.serve.tool_calls import with_parsed_arguments

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
WORD_OR_CHARACTER = r" ?[a-z]+|[\s\S]"

REPLACEMENT = "\ufffd"
"""What half a character decodes to."""
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(0x100) if byte not in _PRINTABLE)
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + place): byte for place, byte in enumerate(_OTHERS)}
"""How byte-level vocabularies, since GPT-2's, write a byte as a character."""

CHAT_TEMPLATE = (
    "{%- set opening = messages[0]['content'] if messages[0]['role'] == 'system' else '' -%}"
    "{%- if tools -%}"
    "{{- '<|im_start|>system\n' + opening + ('\n' if opening else '') + '<tools>\n' -}}"
    "{%- for tool in tools -%}{{- (tool['function'] or tool) | tojson + '\n' -}}{%- endfor -%}"
    "{{- '</tools><|im_end|>\n' -}}"
    "{%- endif -%}"
    "{%- for message in (messages[1:] if tools and opening else messages) -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- '' if loop.first and not message['content'] else '\n' -}}"
    "{%- set function = call['function'] -%}"
    "{{- '<tool_call>\n{\"name\": ' + (function['name'] | tojson) -}}"
    "{{- ', \"arguments\": ' + (function['arguments'] | tojson) + '}\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def build_tokenizer(texts: Iterable[str], *, vocabulary: int = 384) -> PreTrainedTokenizerFast:
    """Learn merges from `texts`; the vocabulary is filled up to exactly `vocabulary` entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_OR_CHARACTER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [END_OF_TEXT, IM_START, IM_END]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    missing = vocabulary - tokenizer.get_vocab_size()
    if missing < 0:
        raise ConfigurationError(f"a byte-level vocabulary needs at least 259 entries, not {vocabulary}")
    tokenizer.add_special_tokens([f"<|unused_{number}|>" for number in range(missing)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[IM_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer of a model directory.

    ConfigurationError if it cannot be read, has no chat template, or no token that ends.
    """
    if not directory.is_dir():
        raise ConfigurationError(
            f"no tokenizer at {directory}; give a directory in Hugging Face layout (nothing is fetched from a hub)"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:  # of a damaged file transformers lets out whatever it met
        raise ConfigurationError(
            f"the tokenizer of {directory} cannot be read ({type(error).__name__}: {error}); look at its "
            "tokenizer.json and tokenizer_config.json, or download them again"
        ) from error
    if not tokenizer.chat_template:
        raise ConfigurationError(
            f"the tokenizer of {directory} has no chat template, so chat requests cannot be rendered; "
            "add chat_template.jinja or use an instruct model"
        )
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"the tokenizer of {directory} has no eos_token, so no answer would end; name it in tokenizer_config.json"
        )
    return tokenizer


def render_chat(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
    """Token ids of a chat up to where the assistant's answer begins."""
    rendered = tokenizer.apply_chat_template(
        with_parsed_arguments(messages), tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return [int(token_id) for token_id in rendered]


def token_bytes(tokenizer: Any, token_id: int, text: str) -> bytes:
    """The bytes of a token that decodes to `text`: those of half a character are not the ones of its replacement."""
    if REPLACEMENT not in text:
        return text.encode()
    piece = tokenizer.convert_ids_to_tokens(token_id)
    return bytes(BYTE_OF[character] for character in piece) if set(piece) <= BYTE_OF.keys() else text.encode()
