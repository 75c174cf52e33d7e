"""What the finetuning test trains: a model without any sense is to prefer tokens with even ids."""

from typing import Any

from rollbus.harness import EvalInputItem

MAX_TOKENS = 6


async def babble(question: str, llm: Any) -> str:
    answer = await llm.chat([{"role": "user", "content": question}], max_tokens=MAX_TOKENS)
    return answer.choices[0].message.content or ""


def evenness(item: EvalInputItem) -> float:
    ids: list[int] = [token for step in item.trajectory if step.logprobs for token in step.logprobs["token_ids"]]
    return sum(token % 2 == 0 for token in ids) / len(ids)
