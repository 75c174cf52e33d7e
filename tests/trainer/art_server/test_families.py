"""Every family that the service runs, as transformers runs it: tiny random models, longer than their windows."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.checkpoints.checkpoint import save_checkpoint
from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
from rollbus.trainer.art_server.learner.update import Learner
from rollbus.trainer.art_server.model.config import FAMILIES, ModelConfig, read_config
from rollbus.trainer.art_server.model.lora import ADAPTER
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.model.weights import to_hf_weights
from rollbus.trainer.art_server.sampler.requests import SamplingParameters
from rollbus.trainer.art_server.sampler.sampler import Sampler
from rollbus.trainer.backends.model_settings import LoraConfig
from rollbus.trainer.train_config import TrainConfig
from tests.models import load_model
from tests.sequences import three_answers

SHAPE: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
GEMMA3_ROPE = {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
KINDS: dict[str, dict[str, Any]] = {
    "llama-2": {"model_type": "llama", "num_key_value_heads": 4},
    "llama-3.2": {"model_type": "llama", "rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 16},
    "mistral": {"model_type": "mistral", "sliding_window": 12},
    "qwen2.5": {"model_type": "qwen2", "rope_parameters": YARN},
    "qwen2-window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 2},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "gemma": {"model_type": "gemma", "head_dim": 16},
    "gemma2": {"model_type": "gemma2", "head_dim": 16, "sliding_window": 12, "query_pre_attn_scalar": 24},
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 12,
        "query_pre_attn_scalar": 24,
        "rope_parameters": GEMMA3_ROPE,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
}
BIASED = {"attention_bias": True}
LLAMA4 = {
    "rope_type": "default",
    "rope_theta": 1e6,
    "llama_4_scaling_beta": 0.3,
    "original_max_position_embeddings": 16,
}
HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
WINDOW = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2}
SMALL_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
"""Within the vocabulary of a tiny model; transformers gives the embedding of a padding token no gradient."""
KINDS |= {
    "llama-bias": {"model_type": "llama", "mlp_bias": True, **BIASED},
    "qwen3-bias": {"model_type": "qwen3", "head_dim": 16, **BIASED},
    "smollm3-window": {"model_type": "smollm3", "no_rope_layer_interval": 2, **WINDOW, **SMALL_IDS},
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2, **SMALL_IDS},
    "granite": {
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.6,
        "logits_scaling": 2.0,
    },
    "seed-oss": {"model_type": "seed_oss", "head_dim": 16, "attention_dropout": 0.0, **SMALL_IDS},
    "olmo2": {"model_type": "olmo2", **SMALL_IDS},
    "olmo3": {"model_type": "olmo3", **WINDOW, **SMALL_IDS},
    "exaone4": {"model_type": "exaone4", **WINDOW},
    "exaone4-whole": {
        "model_type": "exaone4",
        "sliding_window": None,
        "layer_types": ["full_attention"] * 4,
        "tie_word_embeddings": True,
    },
    "ministral": {"model_type": "ministral", "head_dim": 16, **WINDOW},
    "ministral3": {"model_type": "ministral3", "head_dim": 16, "rope_parameters": LLAMA4},
    "phi3": {"model_type": "phi3", "rope_parameters": HALF, "sliding_window": 12, **SMALL_IDS},
    "glm4": {"model_type": "glm4", "head_dim": 16, "rope_parameters": HALF, **SMALL_IDS},
}
TOKENS = torch.randint(0, 384, (2, 60), generator=torch.Generator().manual_seed(0))
LORA = LoraConfig(rank=4, alpha=8.0)
LOADER: Any = transformers.AutoModelForCausalLM


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model as transformers saves it; norms and biases are random too."""
    transformers.logging.disable_progress_bar()
    path = tmp_path_factory.mktemp("families") / str(request.param)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(SHAPE | KINDS[str(request.param)])))
    model = LOADER.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(path)
    return path


def theirs(path: Path) -> Any:
    """The model as transformers runs it, with the attention that knows Gemma 2's caps."""
    options = {"local_files_only": True, "attn_implementation": "eager", "dtype": torch.float32}
    return LOADER.from_pretrained(str(path), **options).eval()


def logits(model: Any, tokens: Tensor = TOKENS) -> Tensor:
    with torch.no_grad():
        return head(model, trunk(model, tokens))


def test_all_families_are_tried() -> None:
    assert {kind["model_type"] for kind in KINDS.values()} == set(FAMILIES)


def test_logits_are_those_of_transformers(folder: Path) -> None:
    with torch.no_grad():
        expected = theirs(folder)(TOKENS).logits
    ours = logits(load_model(folder)[0])
    assert expected.std() > 0.1
    assert torch.allclose(ours, expected, atol=1e-4), float((ours - expected).abs().max())


NAMES_BY_MODEL_TYPE = {settings["model_type"]: name for name, settings in KINDS.items()}
OF_OTHERS: dict[str, Any] = {
    "sliding_window": 12,
    "use_sliding_window": False,
    "no_rope_layers": [1, 0, 1, 0],
    "attention_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
    "partial_rotary_factor": 0.25,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 2.0,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.3,
    "hidden_activation": "gelu_pytorch_tanh",
    "use_bidirectional_attention": True,
}
"""Fields that change the network of some families."""


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_field_of_another_family_changes_no_network(model_type: str, tmp_path: Path) -> None:
    """Of all fields that transformers' class does not declare at once, so a network that uses one differs."""
    plain = SHAPE | KINDS[NAMES_BY_MODEL_TYPE[model_type]]
    if model_type == "gemma3_text":
        del plain["rope_parameters"]  # transformers does not run scaled positions of a part of a head
    declared = {*transformers.CONFIG_MAPPING[model_type]().to_dict(), *plain}
    others = {name: value for name, value in OF_OTHERS.items() if name not in declared}
    torch.manual_seed(1)
    settings = json.loads(json.dumps(plain | others))
    model = LOADER.from_config(transformers.AutoConfig.for_model(**settings), attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(plain | others))
    with torch.no_grad():
        expected = model(TOKENS, use_cache=False).logits
    ours, config = load_model(tmp_path)
    assert len(others) >= 7
    assert torch.allclose(logits(ours), expected, atol=1e-4)
    assert config == ModelConfig.from_hf(plain)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("phi3", {"rope_parameters": HALF | {"partial_rotary_factor": 0.25}}, "0.25 rotates 3 of the 12 numbers"),
        ("phi3", {"partial_rotary_factor": 0.75, "rope_parameters": {}}, "0.75 rotates 9 of the 12 numbers"),
        ("glm4", {"rope_parameters": HALF | {"partial_rotary_factor": 0.1}}, "0.1 rotates 1 of the 16 numbers"),
        ("gemma3", {"rope_parameters": dict.fromkeys(GEMMA3_ROPE, LINEAR)}, "sliding layers have .* of type 'linear'"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0, and a layer attends to a whole number"),
        ("gemma2", {"sliding_window": -1}, "sliding_window is -1"),
        ("ministral3", {"sliding_window": 0.5}, "sliding_window is 0.5"),
    ],
)
def test_a_variant_that_would_be_another_network_is_refused_by_name(
    name: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ModelConfig.from_hf(json.loads(json.dumps(SHAPE | KINDS[name] | changes)))


def test_gemma3_bounds_no_scores_of_attention() -> None:
    gemma3 = SHAPE | KINDS["gemma3"]
    assert ModelConfig.from_hf(gemma3 | {"attn_logit_softcapping": 2.0}) == ModelConfig.from_hf(gemma3)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_attention_to_later_tokens_is_refused_by_name(model_type: str) -> None:
    with pytest.raises(ConfigurationError, match="`is_causal: false`"):
        ModelConfig.from_hf({**SHAPE, **KINDS[NAMES_BY_MODEL_TYPE[model_type]], "is_causal": False})


def test_olmo3_scales_positions_only_in_full_attention_layers(tmp_path: Path) -> None:
    """As transformers 5.24 writes it, and as OLMo 3's own config.json has it, of which transformers 5.2 scales all."""
    shape = {"architectures": ["Olmo3ForCausalLM"], **SHAPE, **KINDS["olmo3"]}
    plain = {"rope_type": "default", "rope_theta": 1e6}
    scaled = {name: value for name, value in YARN.items() if name not in ("rope_theta", "rope_type")}
    written = {
        "nested": shape | {"rope_parameters": {"full_attention": YARN, "sliding_attention": plain}},
        "flat": shape | {"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", **scaled}},
    }
    configs = []
    for name, config in written.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        configs.append(read_config(tmp_path / name))
    assert configs[0] == configs[1]
    assert configs[0].rope is not None
    assert configs[0].sliding_rope_theta == 1e6


def test_every_gradient_is_that_of_transformers(folder: Path) -> None:
    model, config = load_model(folder)
    model.train().requires_grad_(True)
    reference = theirs(folder)
    losses = []
    for at_B_T_V in (head(model, trunk(model, TOKENS)), reference(TOKENS).logits):
        logprobs_B_T_V = torch.log_softmax(at_B_T_V[:, :-1], dim=-1)
        loss = -logprobs_B_T_V.gather(2, TOKENS[:, 1:, None]).mean()
        torch.autograd.backward(loss)
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    ours = to_hf_weights({name: cast(Tensor, weight.grad) for name, weight in model.named_parameters()}, config)
    expected = {name: weight.grad for name, weight in reference.named_parameters()}
    assert set(ours) == set(expected)
    for name, gradient in ours.items():
        assert torch.allclose(gradient, expected[name], atol=2e-5, rtol=1e-3), name


def test_a_saved_model_is_the_same_one_for_us_and_for_transformers(folder: Path, tmp_path: Path) -> None:
    model, config = load_model(folder)
    save_checkpoint(tmp_path / "0001", model, config, base=folder, provenance={"version": 1})
    assert torch.equal(logits(load_model(tmp_path / "0001")[0]), logits(model))
    with torch.no_grad():
        assert torch.allclose(theirs(tmp_path / "0001")(TOKENS).logits, logits(model), atol=1e-4)


def test_the_sampler_reports_the_log_probs_of_the_whole_sequence(folder: Path, tokenizer: Any) -> None:
    model, config = load_model(folder)
    sampler = Sampler(config, tokenizer, max_rows=4)
    try:
        sampler.load(0, model)
        prompts = [TOKENS[0, :7].tolist(), TOKENS[1, :29].tolist()]
        parameter_sets = [SamplingParameters(max_tokens=24, seed=seed, ignore_eos=True) for seed in range(2)]
        futures = [
            sampler.submit(prompt, parameters, 0) for prompt, parameters in zip(prompts, parameter_sets, strict=True)
        ]
        for prompt, future in zip(prompts, futures, strict=True):
            answer = future.result(timeout=120)
            whole = torch.tensor([[*prompt, *answer.token_ids]])
            at_T_V = torch.log_softmax(logits(load_model(folder)[0], whole)[0, len(prompt) - 1 : -1], dim=-1)
            expected = at_T_V.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
            assert torch.allclose(torch.tensor(answer.logprobs), expected, atol=1e-4)
    finally:
        sampler.close()


def test_a_trained_adapter_is_what_peft_and_vllm_add_to_the_base(folder: Path, tmp_path: Path) -> None:
    """PEFT's formula on its names: each module named exists in transformers' model, and gets W + alpha / rank · B·A."""
    loader = ModelLoader(read_config(folder), lora=LORA, base=folder)
    learner = Learner(loader.config, loader=loader)
    for _ in range(3):  # logits move by 0.1 to 0.7; where they move by 4, float32 rounds by up to 1.1e-4
        learner.step(three_answers(), TrainConfig(learning_rate=1e-3))
    save_checkpoint(
        tmp_path / "0001",
        learner.model,
        learner.config,
        base=folder,
        provenance={"version": 1},
        masters=learner.masters.named,
        lora=LORA,
    )
    adapter, merged = load_file(tmp_path / "0001" / ADAPTER), theirs(folder)
    down = [name for name in adapter if name.endswith(".lora_A.weight")]
    joined = loader.config.family.joined
    assert len(down) == (7 - 2 * ("qkv" in joined) - ("gate_up" in joined)) * loader.config.layers
    with torch.no_grad():
        for name in down:
            module = merged.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            module.weight += LORA.alpha / LORA.rank * adapter[name.replace("lora_A", "lora_B")] @ adapter[name]
        expected = merged(TOKENS).logits
    ours = logits(loader.load(tmp_path / "0001"))
    assert torch.allclose(ours, expected, atol=1e-4)
    assert not torch.allclose(ours, logits(load_model(folder)[0]), atol=1e-2)
    targets = json.loads((tmp_path / "0001" / "adapter_config.json").read_text())["target_modules"]
    assert {name.split(".")[-3] for name in down} == set(targets)


@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        ("model.norm.weight", torch.full((64,), torch.nan), r"NaN or infinity, among them 'model\.norm\.weight'; take"),
        ("model.layers.0.mlp.experts.0.weight", torch.zeros(2), r"has no place for 'model\.layers\.0\.mlp\.experts"),
    ],
    ids=["not numbers", "of another family"],
)
def test_weights_that_cannot_be_run_are_refused(
    base_model: Path, tmp_path: Path, name: str, tensor: Tensor, says: str
) -> None:
    path = shutil.copytree(base_model, tmp_path / "broken")
    weights = load_file(path / "model.safetensors") | {name: tensor}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=says):
        load_model(path)


def test_every_other_transformers_model_is_refused_with_what_runs_it() -> None:
    others = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(FAMILIES)
    assert len(others) > 100
    for kind in others:
        with pytest.raises(ConfigurationError, match=rf"type '{kind}'; .*`art_server: art:`.*`art_server: tinker:`"):
            ModelConfig.from_hf({**SHAPE, "model_type": kind})


def test_the_text_part_of_a_vision_model_is_named() -> None:
    words = r"type 'gemma3'; .*its text part, 'gemma3_text', runs as a model of its own, which `rollbus model import`"
    with pytest.raises(ConfigurationError, match=words):
        ModelConfig.from_hf({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})
    with pytest.raises(ConfigurationError, match=r"its text part, 'llama', runs as a model of its own; for others"):
        ModelConfig.from_hf({"model_type": "llava", "text_config": {"model_type": "llama"}})


def test_a_llama_without_key_value_heads_in_its_config_has_as_many_as_heads() -> None:
    config = {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"}
    assert ModelConfig.from_hf({**config, "model_type": "llama"}).kv_heads == 4
