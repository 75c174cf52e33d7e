"""A trajectory's chat as messages, for the backends that render text themselves instead of taking tokens.

Pure. Only a chat that grew without being edited can be told again from what was recorded.
"""

import json
from typing import Any

from rollbus.schemas.events import Message
from rollbus.schemas.trajectories import Trajectory
from rollbus.trainer.backends.protocol import Said


def conversation_of(payload: Trajectory) -> tuple[Said, ...]:
    """Every message in order; empty where the trajectory has several histories, or was offered tools.

    And where calls of tools are no JSON: nobody has checked them on the way here.
    """
    if len(payload.histories) != 1 or payload.tools_hash:
        return ()
    try:
        return _told(payload)
    except ValueError:
        return ()


def _told(payload: Trajectory) -> tuple[Said, ...]:
    sampled = {span.turn: number for number, span in enumerate(payload.histories[0].spans)}
    said: list[Said] = []
    for index, turn in enumerate(payload.turns):
        said += [Said(_json(message)) for message in turn.added_messages]
        said.append(Said(_json(turn.completion), sampled.get(index)))
    return tuple(said)


def _json(message: Message) -> str:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls is not None:
        fields["tool_calls"] = json.loads(message.tool_calls)
    return json.dumps(fields, ensure_ascii=False)
