"""What the toolkit knows of the request that runs, as labels of its episode.

The toolkit's server forgets conversation, message and user before it streams an answer. The headers of the request
stay, so what is missing is read from them, in the way of the toolkit's session.
"""

from contextlib import suppress
from typing import Any

from nat.builder.builder import Builder
from nat.builder.context import Context
from nat.runtime.user_manager import UserManager
from starlette.datastructures import Headers
from starlette.requests import Request

HEADER_BY_LABEL = {"conversation_id": "conversation-id", "user_message_id": "user-message-id"}
LABELS = (*HEADER_BY_LABEL, "user_id", "workflow_run_id")
"""Labels of an episode, by the names that the toolkit's context has."""


def labels_of_request(identity_header: str | None) -> dict[str, str]:
    """Return the labels that have a value; `identity_header` is the header in which the server is told the user."""
    context = Context.get()
    labels = {name: str(value) for name in LABELS if (value := getattr(context, name))}
    headers = context.metadata.headers
    if headers is None:
        return labels
    missing = {label: value for label, name in HEADER_BY_LABEL.items() if (value := headers.get(name))}
    if "user_id" not in labels and (user_id := _user_of(headers, identity_header)):
        missing["user_id"] = user_id
    return missing | labels


def identity_header_of(builder: Builder) -> str | None:
    """Return the header that the configured server reads the user from; None where it reads the usual ones."""
    workflow_builder: Any = getattr(builder, "_workflow_builder", builder)  # a part is given a child of it
    return getattr(workflow_builder.general_config.front_end, "identity_header", None)


def _user_of(headers: Headers, identity_header: str | None) -> str | None:
    request = Request({"type": "http", "headers": headers.raw})
    with suppress(ValueError):  # the server has refused what is not a user, or takes it for none
        user = UserManager.extract_user_from_connection(request, identity_header=identity_header)
        return None if user is None else user.get_user_id()
    return None
