"""Which programs read an export (`--for`), and what each takes.

`make test-readers` loads exports with these versions. A kind that a reader has no use for is refused with the reason; a
row that it would read as another one is left out and counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollbus.consumers.export.forms import Form, for_axolotl, for_nemo, for_openai, for_templates, only_text
from rollbus.consumers.export.writing import FileFormat
from rollbus.schemas.errors import ConfigurationError

Kind = Literal["trajectories", "sft", "dpo", "evaluation"]
SftLayout = Literal["messages", "prompt-completion"]
ReaderName = Literal["hf", "trl", "axolotl", "verl", "nemo", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerForm:
    """One program that trains on files."""

    title: str
    file_formats: tuple[FileFormat, ...]
    """The first is the default."""
    form: Form = for_templates
    """How it takes the messages of conversations and problems."""
    pair_form: Form = for_templates
    """How it takes those of preference pairs."""
    has_datasets: bool = True
    """Whether it loads files with the library `datasets`, so that messages are columns of the type Json."""
    has_facts: bool = True
    """Whether it ignores columns that it does not know."""
    layouts: tuple[SftLayout, ...] = ("messages",)
    refusals: Mapping[Kind, str] = field(default_factory=dict)
    """Why it cannot read a kind of export."""
    file_names: tuple[str, str] = ("train", "validation")


_BOTH: tuple[FileFormat, ...] = ("parquet", "jsonl")
READERS: dict[ReaderName, TrainerForm] = {
    "hf": TrainerForm(title="datasets 5.2.0", file_formats=_BOTH, layouts=("messages", "prompt-completion")),
    "trl": TrainerForm(title="TRL 1.16.0", file_formats=_BOTH, layouts=("messages", "prompt-completion")),
    "axolotl": TrainerForm(
        title="Axolotl 0.21.0",
        file_formats=_BOTH,
        form=for_axolotl,
        pair_form=only_text("Axolotl's DPO"),
        refusals={"evaluation": "it trains on conversations and pairs; export sft or dpo"},
    ),
    "verl": TrainerForm(
        title="verl 0.9.1",
        file_formats=("parquet",),
        form=only_text("verl's SFT"),
        refusals={"dpo": "it has no trainer of preference pairs; export sft, or evaluation for its RL trainers"},
    ),
    "nemo": TrainerForm(
        title="NeMo AutoModel 0.7.0 and NeMo Customizer",
        file_formats=("jsonl",),
        form=for_nemo,
        pair_form=only_text("NeMo Customizer"),
        has_datasets=False,
        has_facts=False,
        refusals={"evaluation": "it trains on conversations and pairs; export sft or dpo"},
        file_names=("training/training_file", "validation/validation_file"),
    ),
    "openai": TrainerForm(
        title="OpenAI's fine-tuning API",
        file_formats=("jsonl",),
        form=for_openai,
        pair_form=for_openai,
        has_datasets=False,
        has_facts=False,
        refusals={"evaluation": "it trains on conversations and pairs; export sft or dpo"},
    ),
}


def require_form(name: ReaderName, kind: Kind, layout: SftLayout, file_format: FileFormat | None) -> FileFormat:
    """Return the format of the files; raises ConfigurationError if the reader cannot take what is asked for."""
    reader = READERS[name]
    if kind == "trajectories":
        return file_format or "parquet"
    if reason := reader.refusals.get(kind):
        raise ConfigurationError(f"{reader.title} (--for {name}) does not read {kind}: {reason}")
    if kind == "sft" and layout not in reader.layouts:
        raise ConfigurationError(
            f"{reader.title} (--for {name}) reads whole conversations; leave out --layout {layout}"
        )
    if file_format and file_format not in reader.file_formats:
        (only,) = reader.file_formats
        raise ConfigurationError(f"{reader.title} (--for {name}) reads only {only}; leave out --format {file_format}")
    return file_format or reader.file_formats[0]
