"""Make a tiny random model of each kind, and write down its logits, its loss and every gradient.

python -m tests.readers.in_reader.check_causal_models FOLDER

FOLDER has `kinds.json`, a configuration for each kind, and `tokens.json`, the ids [batch, length] that all are given.
Each kind's folder then holds the model as this release of transformers saves it, and `expected.safetensors`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

LOADER: Any = transformers.AutoModelForCausalLM


def main(folder: Path) -> None:
    transformers.logging.disable_progress_bar()
    tokens_B_T = torch.tensor(json.loads((folder / "tokens.json").read_text()))
    for kind, fields in json.loads((folder / "kinds.json").read_text()).items():
        torch.manual_seed(1)
        model = LOADER.from_config(transformers.AutoConfig.for_model(**fields), attn_implementation="eager").float()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn(parameter.shape))
        model.eval().save_pretrained(folder / kind)
        logits_B_T_V = model(tokens_B_T).logits
        logprobs_B_T_V = torch.log_softmax(logits_B_T_V[:, :-1], dim=-1)
        loss = -logprobs_B_T_V.gather(2, tokens_B_T[:, 1:, None]).mean()
        torch.autograd.backward(loss)
        gradients = {f"gradient.{name}": weight.grad.clone() for name, weight in model.named_parameters()}
        save_file(
            {"logits": logits_B_T_V.detach(), "loss": loss.detach(), **gradients},
            folder / kind / "expected.safetensors",
        )
    print(transformers.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
