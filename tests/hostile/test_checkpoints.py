"""Files that mean harm in the folders of models and checkpoints: refused in words, and nothing of them is run."""

import json
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.checkpoints.checkpoint import is_complete, read_provenance, read_weights
from rollbus.trainer.art_server.checkpoints.journal import VersionStore
from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer, load_tokenizer
from rollbus.trainer.art_server.model.config import ModelConfig, read_config
from rollbus.trainer.art_server.model.inert_files import INDEX, WEIGHTS

CONFIG = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, feed_forward=16, vocabulary=8)
HUGE = {
    "vocab_size": 10**7,
    "hidden_size": 10**6,
    "num_hidden_layers": 9_000,
    "intermediate_size": 10**7,
    "max_position_embeddings": 10**9,
}
CHILD = """
import json, resource, sys
from pathlib import Path
from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.control.environment import leave_out_unused

leave_out_unused()  # as a model server does

from rollbus.trainer.art_server.base_models.gguf import plan_gguf
from rollbus.trainer.art_server.checkpoints.checkpoint import read_weights
from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
from rollbus.trainer.art_server.model.config import read_config

files, model = map(Path, sys.argv[1:])
before = resource.getrusage(resource.RUSAGE_SELF)
resource.setrlimit(resource.RLIMIT_CPU, (int(before.ru_utime + before.ru_stime) + 60,) * 2)
error_by_file, model_errors = {}, []
for path in files.iterdir():
    try:
        plan_gguf(path)
    except ConfigurationError as error:
        error_by_file[path.stem] = str(error)
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss < 1 << 20, "over 1 GiB"
for read in (read_config, load_tokenizer, lambda folder: read_weights(folder, read_config(folder))):
    try:
        read(model)
    except ConfigurationError as error:
        model_errors.append(str(error))
print(json.dumps([error_by_file, model_errors]))
"""
"""Says why each file is refused, and fails where that took memory; then reads a model's folder."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with one small file of weights."""
    return write_model(tmp_path / "model")


def write_model(model: Path) -> Path:
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


class Outcome(NamedTuple):
    """What a process made of files that mean harm; one process for all, since its imports take ten seconds."""

    error_by_file: dict[str, str]
    """Why each GGUF file is refused."""
    model_errors: list[str]
    """Why the folder with code in it is refused."""
    evidence: Path
    """Exists if that code was run."""
    printed: str


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Write the files and the folder, and let the process read them."""
    files, model = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("models") / "model"
    for name, data in PROMISING.items():
        (files / f"{name}.gguf").write_bytes(data)
    evidence = model.parent / "was-here"
    write_model(model)
    add_code(model, f"open({str(evidence)!r}, 'w')")
    command = [sys.executable, "-c", CHILD, str(files), str(model)]
    run = subprocess.run(command, input="y\ny\ny\n", capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    error_by_file, model_errors = json.loads(run.stdout.splitlines()[-1])
    return Outcome(error_by_file, model_errors, evidence, run.stdout + run.stderr)


@pytest.mark.slow
def test_a_gguf_file_that_promises_more_than_it_holds_costs_no_memory(outcome: Outcome) -> None:
    """A list of 2⁶² bytes in a file of 56 took all memory, before anything of the model was looked at."""
    assert outcome.error_by_file.keys() == PROMISING.keys()
    for name, error in outcome.error_by_file.items():
        assert ("holds a wrong number" if name.endswith(("layers", "width")) else "cut off or damaged") in error


def test_folders_and_notes_that_are_not_versions_are_skipped(tmp_path: Path) -> None:
    for name in ("0003", "²", "٣", "9" * 200, "-1", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "retired").mkdir()
    for name in ("0004.json", "x.json", "².json"):
        (tmp_path / "retired" / name).write_text("{}")
    store = VersionStore(tmp_path)
    assert store.numbers() == [3]
    assert store.retired() == [4]
    assert store.next_number() == 5


def add_code(model: Path, attack: str) -> None:
    """Put what would run a line of Python into a folder: pickles, and a module that the tokenizer and config name."""
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", "model.pkl"):
        (model / name).write_bytes(f"c__builtin__\neval\n(S{attack!r}\ntR.".encode())
    (model / "own.py").write_text(f"{attack}\nclass Own: pass\n")
    tokenizer = {
        "tokenizer_class": "Own",
        "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]},
        "eos_token": "</s>",
    }
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (model / "config.json").write_text(json.dumps(CONFIG.to_hf() | {"auto_map": {"AutoConfig": "own.Own"}}))


@pytest.mark.slow
def test_no_code_of_a_models_folder_is_run(outcome: Outcome) -> None:
    """By a pickle, or a module that the tokenizer names; the test below has the chat template."""
    assert any("has `auto_map`" in error for error in outcome.model_errors)
    assert not outcome.evidence.exists(), outcome.printed


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
