"""The formats that can be read, one row each."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.producers.imports.formats import langfuse, langsmith, openai_files, otlp
from rollbus.producers.imports.formats.trace import Trace, TracePart


@dataclass(frozen=True, slots=True)
class Format:
    """How documents of one tool are read."""

    name: str
    split: Callable[[Mapping[str, Any]], Iterable[TracePart]]
    """The parts that a document holds; raises ForeignDocumentError."""
    assemble: Callable[[str, Sequence[TracePart], Counter[str]], Trace]
    """The trace of its parts; counts what it does not read. May raise ForeignDocumentError."""
    has_times: bool = True
    """False where a document may lack a time: it then has `read_at`, the file's own."""


FORMATS: Mapping[str, Format] = {
    trace_format.name: trace_format
    for trace_format in (
        Format("langfuse", langfuse.split, langfuse.assemble),
        Format("langsmith", langsmith.split, langsmith.assemble),
        Format("otlp", otlp.split, otlp.assemble),
        Format("openai-chat", openai_files.split_chat, openai_files.assemble_chat, has_times=False),
        Format("openai-batch", openai_files.split_batch, openai_files.assemble_batch, has_times=False),
    )
}
