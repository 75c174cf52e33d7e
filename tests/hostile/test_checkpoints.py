"""Files that mean harm in the folders of models and checkpoints: refused in words, and nothing of them is run."""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.checkpoints.checkpoint import INDEX, WEIGHTS, is_complete, read_provenance, read_weights
from rollbus.trainer.art_server.checkpoints.journal import VersionStore
from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer, load_tokenizer
from rollbus.trainer.art_server.model.config import ModelConfig, read_config

CONFIG = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, feed_forward=16, vocabulary=8)
HUGE = {
    "vocab_size": 10**7,
    "hidden_size": 10**6,
    "num_hidden_layers": 9_000,
    "intermediate_size": 10**7,
    "max_position_embeddings": 10**9,
}
PLANNING = """
import resource, sys
from pathlib import Path
from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.base_models.gguf import plan_gguf

before = resource.getrusage(resource.RUSAGE_SELF)
resource.setrlimit(resource.RLIMIT_CPU, (int(before.ru_utime + before.ru_stime) + 60,) * 2)
for path in Path(sys.argv[1]).iterdir():
    try:
        plan_gguf(path)
    except ConfigurationError as error:
        print(f"{path.stem}: {error}")
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss < 1 << 20, "over 1 GiB"
"""
"""Says why each file is refused, and fails where that took memory."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with one small file of weights."""
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": torch.zeros(2)}, model / WEIGHTS)
    (model / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    return model


@pytest.mark.parametrize(
    "name",
    ["../stolen.safetensors", "/etc/passwd", "sub/../../stolen.safetensors", "weights.bin", "", ".", 7, None, []],
)
def test_an_index_names_only_weights_beside_it(folder: Path, name: object) -> None:
    save_file({"a": torch.zeros(2)}, folder.parent / "stolen.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ConfigurationError, match=r"index\.json"):
        read_weights(folder, CONFIG)


def test_mutated_weights_are_refused_in_words(folder: Path) -> None:
    chance, good = random.Random(7), (folder / WEIGHTS).read_bytes()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            data[:8] = chance.choice([0, 1, 2**31, 2**63, 2**64 - 1]).to_bytes(8, "little")
        (folder / WEIGHTS).write_bytes(data)
        with pytest.raises(ConfigurationError):
            read_weights(folder, CONFIG)  # it has no weight of this network anyway
        is_complete(folder)


@pytest.mark.parametrize("name", HUGE)
def test_a_config_that_promises_more_than_its_weights_hold_allocates_nothing(folder: Path, name: str) -> None:
    for number in (HUGE[name], HUGE[name] * 10**9):
        (folder / "config.json").write_text(json.dumps(CONFIG.to_hf() | {name: number}))
        with pytest.raises(ConfigurationError, match=r"numbers or more|wrong number"):
            read_config(folder)


def test_json_that_is_too_deep_is_damaged_json(folder: Path) -> None:
    for name in (INDEX, "config.json", "rollbus.json"):
        (folder / name).write_text('{"weight_map":' * 100_000)
    with pytest.raises(ConfigurationError):
        read_weights(folder, CONFIG)
    with pytest.raises(ConfigurationError):
        read_config(folder)
    assert read_provenance(folder) == {}
    assert not is_complete(folder)


def gguf_of(*fields: bytes, fields_count: int | None = None, tensors: int = 0) -> bytes:
    """A GGUF file with these fields and no tensor."""
    count = len(fields) if fields_count is None else fields_count
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, count) + b"".join(fields)


def gguf_text(text: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if size is None else size) + text


def gguf_list(kind: int, count: int) -> bytes:
    return gguf_text(b"a") + struct.pack("<IIQ", 9, kind, count)


PROMISING = {
    "bytes": gguf_of(gguf_list(0, 2**62)),
    "numbers": gguf_of(gguf_list(10, 2**62) + bytes(800)),
    "texts": gguf_of(gguf_list(8, 2**62) + bytes(800)),
    "lists in lists": gguf_of(gguf_text(b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5_000),
    "a name": gguf_of(gguf_text(b"a", 2**63)),
    "fields": gguf_of(fields_count=2**63),
    "tensors": gguf_of(tensors=2**63),
    "layers": gguf_of(gguf_text(b"llama.block_count") + struct.pack("<II", 4, 2**31)),
    "very many layers": gguf_of(gguf_text(b"llama.block_count") + struct.pack("<IQ", 10, 2**40)),
    "width": gguf_of(gguf_text(b"llama.embedding_length") + struct.pack("<II", 4, 2**31)),
}


@pytest.mark.slow
def test_a_gguf_file_that_promises_more_than_it_holds_costs_no_memory(tmp_path: Path) -> None:
    """A list of 2⁶² bytes in a file of 56 took all memory, before anything of the model was looked at."""
    for name, data in PROMISING.items():
        (tmp_path / f"{name}.gguf").write_bytes(data)
    run = subprocess.run([sys.executable, "-c", PLANNING, str(tmp_path)], capture_output=True, text=True, check=True)
    refused = dict(line.split(": ", 1) for line in run.stdout.splitlines())
    assert refused.keys() == PROMISING.keys()
    for name, said in refused.items():
        assert ("holds a wrong number" if name.endswith(("layers", "width")) else "cut off or damaged") in said


def test_folders_and_notes_that_are_no_versions_are_passed_over(tmp_path: Path) -> None:
    for name in ("0003", "²", "٣", "9" * 200, "-1", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "retired").mkdir()
    for name in ("0004.json", "x.json", "².json"):
        (tmp_path / "retired" / name).write_text("{}")
    store = VersionStore(tmp_path)
    assert store.numbers() == [3]
    assert store.retired() == [4]
    assert store.next_number() == 5


@pytest.mark.slow
def test_no_code_of_a_models_folder_is_run(folder: Path) -> None:
    """By a pickle, or a module that the tokenizer names; the test below has the chat template."""
    evidence = folder.parent / "was-here"
    attack = f"open({str(evidence)!r}, 'w')"
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", "model.pkl"):
        (folder / name).write_bytes(f"c__builtin__\neval\n(S{attack!r}\ntR.".encode())
    (folder / "own.py").write_text(f"{attack}\nclass Own: pass\n")
    tokenizer = {
        "tokenizer_class": "Own",
        "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]},
        "eos_token": "</s>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "config.json").write_text(json.dumps(CONFIG.to_hf() | {"auto_map": {"AutoConfig": "own.Own"}}))
    program = f"""
from pathlib import Path
from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer, load_tokenizer
from rollbus.trainer.art_server.checkpoints.checkpoint import read_weights
from rollbus.trainer.art_server.model.config import read_config
folder = Path({str(folder)!r})
for read in (read_config, load_tokenizer, lambda folder: read_weights(folder, read_config(folder))):
    try:
        read(folder)
    except ConfigurationError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], input="y\ny\ny\n", capture_output=True, text=True, check=True)
    assert "has `auto_map`" in run.stdout
    assert not evidence.exists(), run.stdout + run.stderr


def test_a_chat_template_reaches_nothing_of_python(tmp_path: Path) -> None:
    evidence = tmp_path / "was-here"
    tokenizer = build_tokenizer(["hello there"])
    for template in (
        "{{ cycler.__init__.__globals__.os.system('touch " + str(evidence) + "') }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
    ):
        tokenizer.save_pretrained(str(tmp_path / "model"))
        (tmp_path / "model" / "chat_template.jinja").write_text(template)
        with pytest.raises(ConfigurationError, match="chat template"):
            load_tokenizer(tmp_path / "model")
    assert not evidence.exists()
