package org.rollbus.wire;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericEnumSymbol;
import org.apache.avro.generic.GenericRecord;

/** A decoded record as plain JSON, in the form of the golden files: bytes as hexadecimal digits. */
final class Plain {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;

    private Plain() {}

    static JsonNode of(Object value) {
        if (value == null) {
            return JSON.nullNode();
        }
        if (value instanceof GenericRecord record) {
            ObjectNode node = JSON.objectNode();
            for (Schema.Field field : record.getSchema().getFields()) {
                node.set(field.name(), of(record.get(field.pos())));
            }
            return node;
        }
        if (value instanceof Map<?, ?> map) {
            ObjectNode node = JSON.objectNode();
            map.forEach((key, each) -> node.set(key.toString(), of(each)));
            return node;
        }
        if (value instanceof Collection<?> items) {
            ArrayNode node = JSON.arrayNode();
            items.forEach(each -> node.add(of(each)));
            return node;
        }
        if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return JSON.textNode(HexFormat.of().formatHex(bytes));
        }
        if (value instanceof Long number) {
            return JSON.numberNode(number);
        }
        if (value instanceof Integer number) {
            return JSON.numberNode(number.longValue());
        }
        if (value instanceof Double number) {
            return JSON.numberNode(number);
        }
        if (value instanceof Boolean flag) {
            return JSON.booleanNode(flag);
        }
        if (value instanceof CharSequence || value instanceof GenericEnumSymbol<?>) {
            return JSON.textNode(value.toString());
        }
        throw new IllegalArgumentException("no plain form of " + value.getClass());
    }
}
