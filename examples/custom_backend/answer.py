"""The workflow: one question, one answer."""

from typing import Any


async def answer(question: str, llm: Any) -> str:
    """Return what the model says."""
    said = await llm.chat([{"role": "user", "content": question}], temperature=1.0)
    return (said.choices[0].message.content or "").strip()
