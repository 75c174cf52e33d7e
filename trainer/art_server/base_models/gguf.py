"""A GGUF file → a folder in Hugging Face layout with float32 weights.

transformers converts the weights: it knows how each family's tensors are named and permuted. The tokenizer is built
here: transformers 5.2 gives every file of Llama's kind CodeLlama's, with five tokens more and the wrong end.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, GGUFValueType, dequantize
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.model.config import MOST, MOST_OF_ANY
from rollbus.trainer.art_server.model.memory_limits import ran_out_of_memory

MOST_READS = 4_000_000
"""Twice as many as the largest vocabulary takes with its merges; each costs half a kilobyte of memory."""
INTEGERS = frozenset(kind for kind in GGUFValueType if "INT" in kind.name)
NOT_SIZES = frozenset({"GGUF", "general", "tokenizer"})
"""Sections of a file whose numbers are not those of a network."""
MAGIC = b"GGUF"
FLOAT_BYTES = 4
CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens: those of chat templates, and those that a text may hold."""
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> Any:
    return [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


WORD_SPLITS: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "smollm": lambda: [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "llama-bpe": lambda: _split(WORDS % "{1,3}"),
    "qwen2": lambda: _split(WORDS % ""),
}
"""How a text is cut before merges, by the name that GGUF files give it."""


def plan_gguf(path: Path) -> int:
    """Return how many bytes the float32 weights will take. ConfigurationError for a file that cannot be converted."""
    with path.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise ConfigurationError(f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    reader = _open(path)
    _require_known_sizes(path, reader)
    for tensor in reader.tensors:
        try:
            dequantize(tensor.data[:1], tensor.tensor_type)
        except NotImplementedError as error:
            raise ConfigurationError(
                f"{path}: {tensor.name} is quantised as {tensor.tensor_type.name}, which cannot be converted; take a "
                "file of another quantisation, such as Q8_0, Q4_K_M or F16"
            ) from error
    if not reader.tensors:
        raise ConfigurationError(f"{path} holds no weights; it may be a vocabulary only: take the model's own file")
    if not (path.parent / "tokenizer.json").exists():
        _require_known_tokenizer(path, reader)
    return sum(int(tensor.n_elements) for tensor in reader.tensors) * FLOAT_BYTES


def convert_gguf(path: Path, folder: Path) -> None:
    """Write config, tokenizer and weights. ConfigurationError if transformers does not know the model.

    A tokenizer.json next to the file is taken instead of the file's own tokenizer.
    """
    try:
        if (path.parent / "tokenizer.json").exists():
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), local_files_only=True)
        else:
            tokenizer = _read_tokenizer(_open(path))
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32, local_files_only=True
        )
    except Exception as error:
        if isinstance(error, OSError) or ran_out_of_memory(error):
            raise
        raise ConfigurationError(
            f"{path} cannot be converted ({type(error).__name__}: {str(error).partition(chr(10))[0]}); import the "
            "model's folder in Hugging Face layout instead"
        ) from error
    tokenizer.save_pretrained(str(folder))
    model.save_pretrained(str(folder))


class _Reader(GGUFReader):
    """The library's reader, which takes the end of a file for as many empty values as a header promises."""

    _reads = 0

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        self._reads += 1
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data) or self._reads > MOST_READS:
            raise ValueError(f"a value ends at byte {end}, or there are more than {MOST_READS} values")
        return super()._get(offset, dtype, count, override_order)


def _open(path: Path) -> Any:
    try:
        return _Reader(path)
    except Exception as error:  # of a torn file the reader lets out whatever numpy met
        raise ConfigurationError(
            f"{path} is cut off or damaged: its {path.stat().st_size} bytes do not hold what its header lists "
            f"({type(error).__name__}: {error}); download it again"
        ) from error


def _field(reader: Any, name: str, default: Any = None) -> Any:
    field = reader.get_field(f"tokenizer.{name}")
    return default if field is None else field.contents()


def _require_known_sizes(path: Path, reader: Any) -> None:
    for name, field in reader.fields.items():
        section, _, last = name.partition(".")
        most = MOST["num_hidden_layers"] if last == "block_count" else MOST_OF_ANY
        if section not in NOT_SIZES and field.types[0] in INTEGERS and int(field.parts[-1][0]) > most:
            raise ConfigurationError(f"{path} holds a wrong number: {name} is {field.parts[-1][0]}")


def _require_known_tokenizer(path: Path, reader: Any) -> None:
    kind, split = _field(reader, "ggml.model"), _field(reader, "ggml.pre", "gpt-2")
    if kind is None:
        raise ConfigurationError(f"{path} holds no tokenizer; put the model's tokenizer.json next to it")
    if kind != "gpt2" or split not in WORD_SPLITS:
        raise ConfigurationError(
            f"{path}: its tokenizer is of kind {kind}/{split}, and this service reads gpt2 with "
            f"{', '.join(WORD_SPLITS)} from a GGUF file; put the model's tokenizer.json and tokenizer_config.json "
            "next to it"
        )


def _read_tokenizer(reader: Any) -> Any:
    """Build the byte-level tokenizer that the file describes."""
    tokens, kinds = _field(reader, "ggml.tokens"), _field(reader, "ggml.token_type", [])
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "ggml.merges")]
    split = _field(reader, "ggml.pre", "gpt-2")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split == "llama-bpe"))
    built.pre_tokenizer = pre_tokenizers.Sequence(WORD_SPLITS[split]())
    built.decoder = decoders.ByteLevel()
    if split == "qwen2":
        built.normalizer = normalizers.NFC()
    added = [
        AddedToken(token, normalized=False, special=kind == CONTROL)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (CONTROL, USER_DEFINED)
    ]
    built.add_tokens(added)
    named = {name: _field(reader, f"ggml.{key}_token_id") for name, key in SPECIAL.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=built,
        chat_template=_field(reader, "chat_template"),
        clean_up_tokenization_spaces=False,
        **{name: tokens[number] for name, number in named.items() if number is not None},
    )
