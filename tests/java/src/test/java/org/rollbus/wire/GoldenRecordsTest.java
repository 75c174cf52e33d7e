package org.rollbus.wire;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.message.BadHeaderException;
import org.apache.avro.message.BinaryMessageDecoder;
import org.apache.avro.message.BinaryMessageEncoder;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Apache Avro reads what rollbus wrote, and writes the same bytes: single-object encoding, no code of ours. */
class GoldenRecordsTest {
    private static final ObjectMapper JSON = new ObjectMapper();

    static List<String> names() {
        return Golden.names();
    }

    private static Schema schema(String name) {
        return new Schema.Parser().parse(Golden.text(Golden.SCHEMAS.resolve(name + ".avsc")));
    }

    private static GenericRecord read(String name) throws IOException {
        BinaryMessageDecoder<GenericRecord> decoder = new BinaryMessageDecoder<>(GenericData.get(), schema(name));
        return decoder.decode(Golden.bytes(Golden.RECORDS.resolve(name + ".hex")));
    }

    @ParameterizedTest
    @MethodSource("names")
    void theBytesAreReadToTheSameValues(String name) throws IOException {
        JsonNode expected = JSON.readTree(Golden.text(Golden.RECORDS.resolve(name + ".json")));
        // Whole numbers of the file become longs, as Avro's are.
        assertEquals(normal(expected), normal(Plain.of(read(name))), name);
    }

    @ParameterizedTest
    @MethodSource("names")
    void theSameBytesAreWritten(String name) throws IOException {
        BinaryMessageEncoder<GenericRecord> encoder = new BinaryMessageEncoder<>(GenericData.get(), schema(name));
        ByteBuffer written = encoder.encode(read(name));
        byte[] bytes = new byte[written.remaining()];
        written.get(bytes);
        assertArrayEquals(Golden.bytes(Golden.RECORDS.resolve(name + ".hex")), bytes, name);
    }

    @Test
    void anotherSchemasBytesAreRefused() {
        BinaryMessageDecoder<GenericRecord> decoder =
                new BinaryMessageDecoder<>(GenericData.get(), schema("EpisodeEnded.1"));
        byte[] tick = Golden.bytes(Golden.RECORDS.resolve("Tick.1.hex"));
        assertThrows(org.apache.avro.message.MissingSchemaException.class, () -> decoder.decode(tick));
        assertThrows(BadHeaderException.class, () -> decoder.decode(new byte[20]));
    }

    /** Every number of a tree as a double, so that 1 and 1.0 are alike. */
    private static JsonNode normal(JsonNode node) {
        if (node.isNumber()) {
            return JsonNodeFactory.instance.numberNode(node.doubleValue());
        }
        if (node.isArray()) {
            var copy = JsonNodeFactory.instance.arrayNode();
            node.forEach(each -> copy.add(normal(each)));
            return copy;
        }
        if (node.isObject()) {
            var copy = JsonNodeFactory.instance.objectNode();
            node.properties().forEach(field -> copy.set(field.getKey(), normal(field.getValue())));
            return copy;
        }
        return node;
    }
}
