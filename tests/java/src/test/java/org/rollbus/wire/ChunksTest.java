package org.rollbus.wire;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.List;
import org.junit.jupiter.api.Test;

/** A large record's chunks: 0xC3 0x02, SHA-256 of the whole, index, count (big-endian uint16), then the part. */
class ChunksTest {
    private static final int HEADER = 2 + 32 + 2 + 2;

    @Test
    void theChunksJoinToTheRecord() throws Exception {
        byte[] whole = Golden.bytes(Golden.RECORDS.resolve("TurnRecorded.1.hex"));
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(whole);
        List<String> names = Golden.listed(Golden.CHUNKS, ".hex");
        ByteArrayOutputStream joined = new ByteArrayOutputStream();
        assertTrue(names.size() > 1);
        for (int index = 0; index < names.size(); index++) {
            byte[] frame = Golden.bytes(Golden.CHUNKS.resolve(names.get(index) + ".hex"));
            ByteBuffer buffer = ByteBuffer.wrap(frame);
            assertEquals((byte) 0xC3, buffer.get());
            assertEquals((byte) 0x02, buffer.get());
            byte[] said = new byte[32];
            buffer.get(said);
            assertArrayEquals(digest, said);
            assertEquals(index, buffer.getShort());
            assertEquals(names.size(), buffer.getShort());
            joined.write(frame, HEADER, frame.length - HEADER);
        }
        assertArrayEquals(whole, joined.toByteArray());
    }
}
