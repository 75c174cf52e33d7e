"""An answer in a form."""

import instructor
import openai
from pydantic import BaseModel


class Count(BaseModel):
    """What is asked for."""

    item: str


def main() -> None:
    """Ask; the scripted server fills the form's tool."""
    client = instructor.from_openai(openai.OpenAI())
    question = [{"role": "user", "content": "How many bolts are there?"}]
    client.chat.completions.create(model="agent", response_model=Count, messages=question, max_retries=1)
