package org.rollbus.wire;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.Stream;

/** The files that stand for what a release has written: bytes as hexadecimal digits, the same record as JSON. */
final class Golden {
    static final Path CHECKOUT = Path.of(System.getProperty("rollbus.checkout"));
    static final Path SCHEMAS = CHECKOUT.resolve("schemas/avro");
    static final Path RECORDS = CHECKOUT.resolve("tests/schemas/golden");

    private Golden() {}

    /** Names of all golden records, such as {@code TurnRecorded.1}. */
    static List<String> names() {
        return listed(RECORDS, ".hex");
    }

    /** Paths of the files in a folder whose names end so, without the ending. */
    static List<String> listed(Path folder, String ending) {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(path -> path.getFileName().toString())
                    .filter(name -> name.endsWith(ending))
                    .map(name -> name.substring(0, name.length() - ending.length()))
                    .sorted()
                    .toList();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static byte[] bytes(Path file) {
        return HexFormat.of().parseHex(text(file).strip());
    }

    static String text(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
