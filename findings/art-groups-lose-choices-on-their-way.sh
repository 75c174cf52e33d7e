#!/usr/bin/env bash
# openpipe-art 0.5.23: a group that goes over the wire as ART's own client sends it comes back without its Choices.
#
# Expected: `TrajectoryGroup.model_validate(group.model_dump(mode="json"))` is the group again. The dump is the body that
# ART's client for W&B's serverless training posts; a Choice in it has the sampled tokens and their log-probs.
# What happens: the union of messages and choices tries the message first, which is not validated, so that every Choice comes
# back as a plain dict. ART's tokenising looks for instances of Choice, and finds nothing that was sampled. A reward of 0.0 is
# not in the dump at all, since it is the default.
# Whom it matters to: whoever stores ART's groups as JSON, or writes a service that reads what ART's client sends.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install openpipe-art==0.5.23
cat >"$folder/round_trip.py" <<'PY'
import sys

from art.trajectories import Trajectory, TrajectoryGroup
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

choice = Choice(index=0, finish_reason="stop", message=ChatCompletionMessage(role="assistant", content="refund"))
question = {"role": "user", "content": "Where does this ticket go?"}
sent = TrajectoryGroup([Trajectory(messages_and_choices=[question, choice], reward=0.0)])
body = sent.model_dump(mode="json")
received = TrajectoryGroup.model_validate(body)
before, after = (type(group.trajectories[0].messages_and_choices[1]).__name__ for group in (sent, received))
has_reward = "reward" in body["trajectories"][0]
print(f"openpipe-art 0.5.23: a {before} comes back as a {after}; its reward of 0.0 is in the body: {has_reward}")
if (before, after, has_reward) != ("Choice", "dict", False):
    sys.exit("the behaviour has changed")
PY
"$folder/venv/bin/python" "$folder/round_trip.py" 2>"$folder/log" || { tail -5 "$folder/log"; exit 1; }
