"""A value gets into a settings file without a comment being lost."""

from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from rollbus.schemas.errors import ConfigurationError
from rollbus.settings_file import Place
from rollbus.start.settings_text import set_value

FILE = """\
# Our shop.
kafka: {bootstrap_servers: 'b:1'}   # in the cluster
runs:
  - run_id: main          # the one that serves
    model: agent
    grouping:
      group_size: 8       # attempts

  - run_id: other
scoring:
sink: {}
"""


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("stack", "kafka_port"), 21400),
        (("kafka", "bootstrap_servers"), "c:2"),
        (("kafka", "username"), "app: 'x'"),
        (("runs", 0, "model"), "agent-small"),
        (("runs", 0, "grouping", "reward_wait_ms"), 20000),
        (("runs", 0, "grouping", "group_size"), 4),
        (("runs", 0, "filter", "tasks"), ["refund"]),
        (("runs", 1, "model"), "m"),
        (("runs", 2), {"run_id": "third"}),
        (("scoring", "rewards"), [{"type": "feedback", "name": "thumbs"}]),
        (("sink", "max_rows"), 9),
    ],
    ids=str,
)
def test_a_value_is_set_and_every_comment_stays(place: Place, value: Any) -> None:
    changed = set_value(FILE, place, value)
    document: Any = yaml.safe_load(changed)
    for key in place:
        document = document[key]
    assert document == value
    for comment in ("# Our shop.", "# in the cluster", "# the one that serves", "# attempts"):
        assert comment in changed


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}\n"])
def test_a_file_without_settings_gets_its_first(text: str) -> None:
    changed = set_value(text, ("runs", 0, "model"), "agent")
    assert yaml.safe_load(changed) == {"runs": [{"model": "agent"}]}
    assert changed.startswith("# nothing yet") == text.startswith("#")


def test_an_impossible_place_in_the_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be set below"):
        set_value(FILE, ("kafka", "bootstrap_servers", "host"), "b")
    with pytest.raises(ConfigurationError, match="2 entries"):
        set_value(FILE, ("runs", 5), {})


keys = st.sampled_from(["model", "kafka", "runs", "port"])
values = st.none() | st.integers() | st.text("ab: #'[-", max_size=6) | st.lists(st.integers(), max_size=2)
documents = st.dictionaries(keys, st.recursive(values, lambda below: st.dictionaries(keys, below, max_size=3)))


@given(documents, st.lists(keys, min_size=1, max_size=3), values, st.sampled_from([True, False, None]))
def test_a_value_can_be_set_anywhere_in_a_file_of_any_style(
    document: dict[str, Any], place: list[str], value: Any, style: bool | None
) -> None:
    below: Any = document
    for key in place[:-1]:
        assume(below is None or isinstance(below, dict))
        below = None if below is None else below.get(key)
    assume(below is None or isinstance(below, dict))
    text = "# ours\n" + yaml.safe_dump(document, default_flow_style=style)
    changed = set_value(text, tuple(place), value)
    section: Any = yaml.safe_load(changed)
    for key in place:
        section = section[key]
    assert section == value
    assert changed.startswith("# ours\n")
