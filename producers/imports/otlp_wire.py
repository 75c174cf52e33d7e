"""Bodies of OTLP requests → documents as OTLP's JSON has them, which `producers/imports/formats/otlp` reads."""

import base64
from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rollbus.producers.imports.formats.otlp import SIGNALS
from rollbus.producers.imports.formats.trace import ForeignDocumentError
from rollbus.schemas.ids import parse_json

REQUESTS: Mapping[str, type[Message]] = {"traces": ExportTraceServiceRequest, "logs": ExportLogsServiceRequest}
IDS = ("traceId", "spanId", "parentSpanId")


def read_body(signal: str, body: bytes, *, is_json: bool) -> dict[str, Any]:
    """Return the request of a body; raises ForeignDocumentError."""
    if is_json:
        try:
            document = parse_json(body)
        except ValueError as error:
            raise ForeignDocumentError(f"the body is not JSON ({error})") from error
        if not isinstance(document, dict):
            raise ForeignDocumentError("the body is not a JSON object")
        return document
    request = REQUESTS[signal]()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise ForeignDocumentError(f"the body is not an {type(request).__name__} ({error})") from error
    return read_message(request)


def read_message(request: Message) -> dict[str, Any]:
    """Return the request of a message: protobuf's JSON, but for ids, which are hexadecimal in OTLP."""
    document: dict[str, Any] = MessageToDict(request)
    for groups, scopes, rows in SIGNALS:
        for group in document.get(groups, ()):
            for scope in group.get(scopes, ()):
                for row in scope.get(rows, ()):
                    row |= {name: base64.b64decode(row[name]).hex() for name in IDS if name in row}
    return document
