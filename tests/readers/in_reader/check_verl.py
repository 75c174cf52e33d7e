"""Load an SFT export and problems with verl's data sets, and compare with the truth.

python -m tests.readers.in_reader.check_verl FOLDER
"""

import json
import sys
from pathlib import Path

from tests.readers.in_reader.families import make_tokenizer

TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"""
"""verl renders each message alone, and refuses templates that depend on a message's place, as most of TRL's do."""


def main(folder: Path) -> None:
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
    from verl.utils.dataset.rl_dataset import RLHFDataset

    tokenizer = make_tokenizer("qwen2_5", TEMPLATE)
    truth = list(json.loads((folder / "truth.json").read_text()).values())
    settings = OmegaConf.create({"pad_mode": "no_padding", "max_length": 1 << 22})
    rows = MultiTurnSFTDataset(str(folder / "train.parquet"), tokenizer, settings)
    assert len(rows) == len(truth), (len(rows), len(truth))
    for at, expected in enumerate(truth):
        assert rows.messages[at] == expected["messages"], rows.messages[at]
        whole = tokenizer.apply_chat_template(expected["messages"], return_dict=True)["input_ids"]
        assert rows[at]["input_ids"].tolist() == list(whole), tokenizer.decode(rows[at]["input_ids"])
    print(len(truth), "conversations are tokenized as recorded")
    options = {"cache_dir": str(folder / "cache"), "max_prompt_length": 1 << 22, "filter_overlong_prompts_workers": 1}
    problems = RLHFDataset(str(folder / "problems" / "train.parquet"), tokenizer, OmegaConf.create(options))
    by_index = {problems[at]["extra_info"]["index"]: problems[at] for at in range(len(problems))}
    date = by_index["date1"]
    assert date["raw_prompt"] == [{"role": "user", "content": "2026-01-01"}], date["raw_prompt"]
    assert date["reward_model"] == {"style": "rule", "ground_truth": "2026-02-01T10:00:00Z"}, date["reward_model"]
    assert (date["data_source"], date["ability"]) == ("2026-01-01", "2026-01-01")
    print(len(by_index), "problems are asked as recorded")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
