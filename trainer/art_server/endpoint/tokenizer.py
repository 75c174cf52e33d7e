"""A small byte-level tokenizer with a ChatML template, for models that the project builds itself.

Any text encodes (256 byte symbols), lower-case words merge, and everything else stays one symbol per byte, so
that digits, capitals and newlines are tokens of their own: a board of a game reads cell by cell.
"""

import json
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
from rollbus.trainer.art_server.endpoint.chat_template import chat_template
from rollbus.trainer.art_server.endpoint.template_limits import require_bounded, within_time
from rollbus.trainer.art_server.endpoint.tool_calls import with_parsed_arguments
from rollbus.trainer.art_server.model.inert_files import require_inert

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
WORD_OR_CHARACTER = r" ?[a-z]+|[\s\S]"

REPLACEMENT = "\ufffd"
"""What half a character decodes to."""
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(0x100) if byte not in _PRINTABLE)
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + place): byte for place, byte in enumerate(_OTHERS)}
"""How byte-level vocabularies, since GPT-2's, write a byte as a character."""


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
        chat_template=chat_template(),
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(directory: Path, *, vocabulary: int | None = None) -> Any:
    """The tokenizer of a model directory, whose ids lie below `vocabulary`.

    ConfigurationError if it cannot be read, has no chat template or one that fails, has no token that ends, or has more
    tokens than the model.
    """
    if not directory.is_dir():
        raise ConfigurationError(
            f"no tokenizer at {directory}; give a directory in Hugging Face layout (nothing is fetched from a hub)"
        )
    if not any((directory / name).exists() for name in TOKENIZER_FILES):
        raise ConfigurationError(f"{directory} has no tokenizer; copy its {TOKENIZER_FILES[0]} there")
    require_inert(directory)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
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
    templates = tokenizer.chat_template
    for template in templates.values() if isinstance(templates, dict) else [templates]:
        require_bounded(template, str(directory))
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(
            f"the tokenizer of {directory} has no eos_token, so no answer would end; name it in tokenizer_config.json"
        )
    highest = count_known_tokens(tokenizer) - 1
    if vocabulary is not None and highest >= vocabulary:
        raise ConfigurationError(
            f"the tokenizer of {directory} has ids up to {highest}, the model's vocabulary only {vocabulary} entries; "
            "take the tokenizer that belongs to these weights, or resize their embeddings"
        )
    try:
        render_chat(tokenizer, [{"role": "user", "content": "hello"}], None)
    except Exception as error:  # the template is the user's
        raise ConfigurationError(
            f"the chat template of {directory} fails on a plain question ({type(error).__name__}: {error}); mend its "
            "chat_template.jinja"
        ) from error
    return tokenizer


def read_stop_ids(directory: Path) -> frozenset[int]:
    """Tokens that end an answer by the model's files, in addition to the tokenizer's own: Gemma's end of turn."""
    return _stop_ids_in(directory / "generation_config.json") | _stop_ids_in(directory / "config.json")


def _stop_ids_in(path: Path) -> frozenset[int]:
    try:
        stop_ids = json.loads(path.read_bytes())["eos_token_id"]
        return frozenset([stop_ids] if isinstance(stop_ids, int) else map(int, stop_ids or []))
    except (OSError, ValueError, LookupError, TypeError):
        return frozenset()  # the field is optional, and so is generation_config.json


def count_known_tokens(tokenizer: Any) -> int:
    """Return the number of ids that mean something: a model's matrix may have more rows, padded to a round number."""
    images = getattr(tokenizer, "image_token_id", None)  # Gemma 3's lies beyond the embeddings of its text models
    return 1 + max(int(number) for number in tokenizer.get_vocab().values() if number != images)


def renders_tools(tokenizer: Any) -> bool:
    """Whether the chat template shows the model which tools it is offered."""
    chat = [{"role": "user", "content": "hello"}]
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
    try:
        return render_chat(tokenizer, chat, [tool]) != render_chat(tokenizer, chat, None)
    except Exception:  # what it says is the answer to the first request with tools
        return True


def render_chat(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
    """Token ids of a chat up to where the assistant's answer begins."""
    text = within_time(
        lambda: tokenizer.apply_chat_template(
            with_parsed_arguments(messages), tools=tools, add_generation_prompt=True, tokenize=False
        )
    )
    return [int(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]


def token_bytes(tokenizer: Any, token_id: int, text: str) -> bytes:
    """The bytes of a token that decodes to `text`: those of half a character are not the ones of its replacement."""
    if REPLACEMENT not in text:
        return text.encode()
    piece = tokenizer.convert_ids_to_tokens(token_id)
    return bytes(BYTE_OF[character] for character in piece) if set(piece) <= BYTE_OF.keys() else text.encode()
