"""Write the permissions of `acls` to the broker, as `kafka-acls --add` does; only an administrator may."""

from collections.abc import Iterable

from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreateAclsRequest

from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import RejectedError
from rollbus.streams.operate.acls import Acl

RESOURCES = {"topic": 2, "group": 3, "transactional-id": 5}
PATTERNS = {"literal": 3, "prefixed": 4}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Describe": 8, "DescribeConfigs": 10}
ALLOW = 3
"""Numbers of Kafka's protocol (AclBindings)."""


async def allow(kafka: KafkaConnection, user: str, acls: Iterable[Acl]) -> None:
    """Allow a user what is listed; one that has it already keeps it. Raises RejectedError, UnavailableError."""
    async with running(kafka, new_admin(kafka)) as admin:
        for acl in acls:
            place = RESOURCES[acl.resource], acl.name, PATTERNS[acl.pattern]
            for operation in acl.operations:
                request = CreateAclsRequest(*place, f"User:{user}", "*", OPERATIONS[operation], ALLOW)
                answer = await admin._send_request(request)
                for code, message in answer.creation_responses:
                    if code:
                        refusal = f"User:{user} could not be allowed to {operation} {acl.resource} {acl.name}"
                        raise RejectedError(f"{refusal}: {for_code(code).__name__} {message or ''}")
