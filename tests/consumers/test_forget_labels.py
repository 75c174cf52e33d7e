"""The condition by which ClickHouse finds the episodes with a label, as its own engine reads it."""

import json
import subprocess
import sys

from rollbus.consumers.clickhouse.maintain.forget import with_labels

EPISODES = (
    "SELECT arrayJoin([map('user', 'ann', 'tier', 'gold'), map('user', ''), map('tier', 'gold'), map()]) AS labels"
)
ASK = """
import sys
import chdb
for sql in sys.argv[1:]:
    print(str(chdb.query(sql, "TSVRaw")).strip())
"""


def test_an_episode_without_a_label_is_not_found_by_its_empty_value() -> None:
    """It would be forgotten with all others that lack the label."""
    expected_labels = [
        ({"user": "ann"}, [{"user": "ann", "tier": "gold"}]),
        ({"user": "ann", "tier": "gold"}, [{"user": "ann", "tier": "gold"}]),
        ({"user": "ann", "tier": "free"}, []),
        ({"user": ""}, [{"user": ""}]),
        ({"us'er": ""}, []),
    ]
    statements = [
        f"SELECT toJSONString(groupArray(labels)) FROM ({EPISODES}) WHERE {with_labels(labels)}"
        for labels, _ in expected_labels
    ]
    printed = subprocess.run(
        [sys.executable, "-c", ASK, *statements], capture_output=True, text=True, check=True
    ).stdout
    assert [json.loads(line) for line in printed.splitlines()] == [episodes for _, episodes in expected_labels]
