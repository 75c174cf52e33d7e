"""The Quix Streams application of a user who has the schemas and not our codec: Quix's own Avro classes, on fastavro.

They know no single-object header, so the application takes it off and puts it on, and picks the schema by it.
"""

import json
import random
import sys

from quixstreams.models.serializers.avro import AvroDeserializer, AvroSerializer
from quixstreams.models.serializers.base import MessageField, SerializationContext

from benchmarks.streams.avro_library import Codec, Plain, assembled, codec, conversion_us, newest, schemas
from benchmarks.streams.events import episode
from benchmarks.streams.quix_app import OURS, run
from rollbus.schemas.codec import HEADER_BYTES


def quix_codec(topic: str) -> Codec:
    """Return the codec of Quix's serializers."""
    deserializers = {header: AvroDeserializer(schema) for header, schema in schemas().items()}
    header, schema = newest("Trajectory")
    serializer, context = AvroSerializer(schema), SerializationContext(topic, MessageField.VALUE)

    def read(data: bytes) -> Plain:
        return deserializers[data[:HEADER_BYTES]](data[HEADER_BYTES:], context)  # type: ignore[return-value]

    def write(plain: Plain) -> bytes:
        return header + serializer(plain, context)

    return codec(read, write)


def main(bootstrap_servers: str, namespace: str, records: int) -> None:
    """Work until all records are committed; print what it took, and what of it turns dictionaries into records."""
    used, events = quix_codec(namespace + "episode-events"), episode(0, random.Random(0))
    if assembled(events, used) != assembled(events, OURS):
        sys.exit("Quix's Avro classes write other trajectories than our codec: that would be other work")
    converting = conversion_us()
    took = run(bootstrap_servers, namespace, records, used)
    print(json.dumps({**took, "conversion_us": converting}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
