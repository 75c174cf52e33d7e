"""Every settings example of the pages is really accepted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rollbus.settings import Settings
from rollbus.settings_file import load_settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = tuple(
    f"{page}.md"
    for page in (
        "archive",
        "backends",
        "delivery",
        "gpu",
        "grouping",
        "guards",
        "import",
        "managed-kafka",
        "model-service",
        "monitoring",
        "next-turn",
        "policy-estimate",
        "resampling",
        "rewards",
        "security-doors",
        "settings",
        "sink",
        "trainer",
    )
)
EXAMPLES = [
    pytest.param(example, id=f"{page}-{number}")
    for page in PAGES
    for number, example in enumerate(re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_settings_example_parses(example: str, tmp_path: Path) -> None:
    path = tmp_path / "rollbus.yaml"
    path.write_text(example)
    settings = load_settings(Settings, path, {"KAFKA": "broker:9092"})
    assert settings.model_fields_set


def test_the_settings_page_names_every_section() -> None:
    text = (DOCS / "settings.md").read_text()
    for section in Settings.model_fields:
        assert f"\n{section}:" in text


def test_the_defaults_on_the_page_are_the_defaults_of_the_settings() -> None:
    text = (DOCS / "settings.md").read_text().partition("## What applies if you write nothing")[2]
    defaults = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)[0]
    assert Settings.model_validate(yaml.safe_load(defaults)) == Settings()


def test_the_reference_of_settings_is_that_of_the_code() -> None:
    completed = subprocess.run([sys.executable, ROOT / "scripts" / "settings_reference", "--check"], check=False)
    assert completed.returncode == 0, "run scripts/settings_reference"


def test_the_settings_of_a_gpu_reach_what_the_model_service_takes(tmp_path: Path) -> None:
    both = re.findall(r"```yaml\n(.*?)```", (DOCS / "gpu.md").read_text(), flags=re.DOTALL)
    ours, arts = (Settings.model_validate(yaml.safe_load(example)).art_server_settings(tmp_path) for example in both)
    assert (ours.options.device, ours.options.precision, ours.options.max_tokens) == ("cuda", "bfloat16", 4096)
    assert ours.options.lora is not None
    assert (ours.options.lora.rank, ours.options.art) == (16, None)
    assert arts.options.art is not None
    assert (arts.options.art.quantisation, arts.options.art.gradient_accumulation) == ("4bit", 64)
    assert (arts.options.max_rows, arts.options.logprobs_mode) == (64, "processed")
