"""One GRPO step of SmolLM2 on twelve prompts with eight answers each: ours, and TRL's GRPOTrainer.

    python -m benchmarks.model.step make FOLDER MODEL      MODEL in Hugging Face's layout
    python -m benchmarks.model.step ours FOLDER
    .venv-bench-trainer/bin/python -m benchmarks.model.step trl FOLDER

The prompts are those of the demo's tickets: about 120 tokens, of which most are the same in all. All parameters are
trained in float32; both take the same rows, loss, optimizer and clipping (see `benchmarks.trainer.step`). TRL passes
one group at a time and adds up the gradients: all 96 rows at once take more than 24 GB. Prints one JSON line: median
seconds of a step, and the most memory of the process.
"""

import json
import random
import resource
import sys
from pathlib import Path

from benchmarks.trainer import step

GROUPS, GROUP_SIZE, COMPLETION = 12, 8, (2, 8)
"""The last: the range of lengths in tokens."""


def make(folder: Path, model: Path) -> None:
    from rollbus.demo.routing.prompt import messages
    from rollbus.demo.routing.tickets import TRAFFIC
    from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer

    (folder / "model").symlink_to(model.resolve())
    tokenizer = load_tokenizer(model)
    chance = random.Random(3)
    rows = []
    for number in range(GROUPS):
        text = tokenizer.apply_chat_template(
            messages(TRAFFIC.ticket(0, number).text), add_generation_prompt=True, tokenize=False
        )
        prompt = tokenizer.encode(text)
        for member in range(GROUP_SIZE):
            completion = [chance.randrange(5, 3000) for _ in range(chance.randint(*COMPLETION))]
            logprobs = [-chance.random() * 2 - 5 for _ in completion]
            advantage = 0.5 if member % 2 else -0.5
            rows.append({"prompt": prompt, "completion": completion, "logprobs": logprobs, "advantage": advantage})
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")


def measure(name: str, folder: Path) -> dict[str, float]:
    step.ROWS, step.ROWS_AT_ONCE, step.STEPS = GROUPS * GROUP_SIZE, GROUP_SIZE, 3
    figures = step.timed({"ours": step.ours, "trl": step.trl}[name](folder))
    return {**figures, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


if __name__ == "__main__":
    chosen, *paths = sys.argv[1:]
    if chosen == "make":
        make(*map(Path, paths))
    else:
        print(json.dumps(measure(chosen, Path(paths[0]))))
