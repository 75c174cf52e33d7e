"""Models of strangers: their settings run nothing, their files stay in their folder, their templates end."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rollbus.schemas.errors import ConfigurationError
from rollbus.trainer.art_server.base_models.importing import import_model
from rollbus.trainer.art_server.control.server import check_base_model
from rollbus.trainer.art_server.endpoint.template_limits import (
    TemplateTooSlowError,
    require_bounded,
    within_time,
)
from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer, load_tokenizer
from rollbus.trainer.art_server.model.config import ModelConfig, read_config
from tests.models import create_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small model in Hugging Face layout."""
    tokenizer = build_tokenizer(["hello world"])
    config = ModelConfig(layers=1, width=16, heads=2, kv_heads=2, feed_forward=16, vocabulary=len(tokenizer))
    return create_model(tmp_path / "model", config, tokenizer, 0)


def change(source: Path, file: str, **fields: Any) -> None:
    path = source / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("auto_map", {"AutoConfig": "configuration.Config"}),
        ("trust_remote_code", True),
        ("custom_pipelines", {"p": {"impl": "p.P"}}),
        ("attn_implementation", "somebody/kernels"),
        ("_attn_implementation", "somebody/kernels:run"),
        ("_attn_implementation_internal", "somebody/kernels@main"),
        ("experts_implementation", {"": "somebody/kernels"}),
        ("text_config", {"nested": [{"auto_map": {"AutoModel": "m.M"}}]}),
    ],
)
def test_every_way_in_refuses_a_setting_that_runs_or_fetches_code(
    source: Path, tmp_path: Path, file: str, field: str, value: Any
) -> None:
    change(source, file, **{field: value})
    name = "auto_map" if field == "text_config" else field
    for way_in in (lambda: import_model(source, tmp_path / "cache"), lambda: check_base_model(source),
                   lambda: read_config(source), lambda: load_tokenizer(source)):  # fmt: skip
        with pytest.raises(ConfigurationError, match=f"has `{name}`"):
            way_in()
    assert not list((tmp_path / "cache").glob("*"))


def test_settings_of_ordinary_models_are_not_refused(source: Path, tmp_path: Path) -> None:
    change(source, "config.json", attn_implementation="sdpa", _attn_implementation_autoset=True, auto_map={})
    assert import_model(source, tmp_path / "cache").is_dir()


@pytest.mark.parametrize("name", ["../../escape", "/tmp/escape", "..", ".hidden", "a/b", "", "a\n"])
def test_a_models_name_cannot_be_a_path(source: Path, tmp_path: Path, name: str) -> None:
    cache = tmp_path / "deep" / "cache"
    if name:
        with pytest.raises(ConfigurationError, match="cannot name a model's folder"):
            import_model(source, cache, name=name)
    assert not list(tmp_path.rglob("*escape*"))


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors"])
def test_a_link_out_of_the_folder_is_refused(source: Path, tmp_path: Path, file: str) -> None:
    secret = tmp_path / "elsewhere"
    (source / file).rename(secret)
    (source / file).symlink_to(secret)
    with pytest.raises(ConfigurationError, match="outside of its folder"):
        import_model(source, tmp_path / "cache")


def test_a_snapshot_of_the_hubs_cache_is_links_and_is_read(source: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in source.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    folder = import_model(snapshot, tmp_path / "cache")
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_code_and_unknown_files_stay_out_of_the_cache(source: Path, tmp_path: Path) -> None:
    for name in ("modeling_x.py", "setup.cfg", "run.sh", "notes.txt", ".env"):
        (source / name).write_text("print('harmless')")
    reports: list[str] = []
    folder = import_model(source, tmp_path / "cache", report=reports.append)
    names = {path.name for path in folder.iterdir()}
    assert not names & {"modeling_x.py", "setup.cfg", "run.sh", "notes.txt", ".env"}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= names
    assert any("modeling_x.py" in report for report in reports)


def test_a_template_that_does_not_end_costs_its_limit_and_no_more() -> None:
    def loop() -> None:
        while True:
            sum(range(100))

    start_s = time.monotonic()
    with pytest.raises(TemplateTooSlowError):
        within_time(loop, 0.2)
    assert time.monotonic() - start_s < 30
    assert within_time(lambda: 7) == 7


def test_a_template_that_is_slow_is_named_at_the_import(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbus.trainer.art_server.endpoint.template_limits.TEMPLATE_S", 0.3)
    rows = "{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}"
    (source / "chat_template.jinja").write_text(rows + "hello")
    with pytest.raises(ConfigurationError, match="TemplateTooSlowError"):
        import_model(source, tmp_path / "cache")


@pytest.mark.parametrize("template", ["{{ 'a' * 3 }}", "{{ 2 ** 3 }}"])
def test_a_template_that_multiplies_is_refused(template: str) -> None:
    with pytest.raises(ConfigurationError, match="of any size is one operation"):
        require_bounded(template, "model")
