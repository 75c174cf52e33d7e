"""Load exports with `datasets` by the printed line, and compare every row with the truth; then render it.

    python -m tests.readers.in_reader.check_datasets FOLDER

FOLDER has `checks.json`: for each export the line that loads it, and its truth. Every tool-aware chat template of TRL
has to render each row as it renders the truth, and those of six families have to give the text that was sampled.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.readers.in_reader.families import SAMPLED, template_of

TEXT_ONLY = {"deepseekv3", "deepseek_r1_distill"}
"""These two print arguments as they are, so they need text; with objects they raise, or leave the call out."""


def main(folder: Path) -> None:
    os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
    for check in json.loads((folder / "checks.json").read_text()):
        rows = load(check["line"])
        truth = json.loads(Path(check["truth"]).read_text())
        loaded = {row["trajectory_id"]: row for row in rows}
        assert loaded.keys() == truth.keys(), loaded.keys() ^ truth.keys()
        for name, row in loaded.items():
            expected = truth[name]
            messages = row["messages"] if "messages" in row else [*row["prompt"], *row["completion"]]
            assert exact(messages) == exact(expected["messages"]), (check["line"], name, messages)
            assert exact(row.get("tools")) == exact(expected["tools"]), (name, row.get("tools"))
            assert row["task"] == "2026-01-01", row["task"]
        print(len(loaded), "rows as recorded:", check["line"])
        if check["templates"]:
            render_all(loaded, truth)


def load(line: str) -> Any:
    """Run the line that `rollbus export` prints."""
    from datasets import Dataset, Features, load_dataset

    return eval(line, {"load_dataset": load_dataset, "Dataset": Dataset, "Features": Features, "json": json})


def exact(value: Any) -> str:
    """Return the value with its types: 7, 7.0 and "7" differ."""
    return json.dumps(value, ensure_ascii=False)


def render_all(loaded: dict[str, Any], truth: dict[str, Any]) -> None:
    import trl

    names = sorted(path.stem for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    aware = [name for name in names if "tool_calls" in template_of(name) and not name.endswith("_training")]
    assert len(aware) >= 28, aware
    for family in aware:
        text = template_of(family)
        for name, row in loaded.items():
            expected = truth[name]
            right = outcome(text, expected["messages"], expected["tools"])
            assert outcome(text, row["messages"], row.get("tools")) == right, (family, name)
            may_refuse = family in TEXT_ONLY or name == "tools"  # Llama's templates take one call at once
            assert may_refuse or not right.startswith("raises"), (family, name, right)
    for family, sampled in SAMPLED.items():
        row = loaded["single"]
        whole = render(template_of(family), row["messages"], row["tools"])
        prompt = render(template_of(family), row["messages"][:-1], row["tools"], add_generation_prompt=True)
        assert whole.startswith(prompt), family
        assert whole[len(prompt) :].startswith(sampled), (family, whole[len(prompt) :])
    print(len(aware), "templates render every row as they render the truth;", len(SAMPLED), "as it was sampled")


def outcome(template: str, messages: Any, tools: Any) -> str:
    """Return the text, or how the template refuses the messages."""
    try:
        return render(template, messages, tools)
    except Exception as error:
        return f"raises {error!r}"


def render(template: str, messages: Any, tools: Any, **options: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    texts, _ = render_jinja_template([messages], chat_template=template, tools=tools, **special, **options)
    return str(texts[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
