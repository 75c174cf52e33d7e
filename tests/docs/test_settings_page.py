"""The settings page shows a file that is really accepted."""

import re
from pathlib import Path

from rollbus.settings import Settings
from rollbus.settings_file import load_settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_example_on_the_page_parses(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    path = tmp_path / "rollbus.yaml"
    path.write_text(example)
    settings = load_settings(Settings, path, {"KAFKA": "broker:9092"})
    assert settings.kafka.bootstrap_servers == "broker:9092"
    assert settings.runs[0].curriculum.mode == "harness"


def test_the_page_names_every_section() -> None:
    text = PAGE.read_text()
    for section in Settings.model_fields:
        assert f"\n{section}:" in text
