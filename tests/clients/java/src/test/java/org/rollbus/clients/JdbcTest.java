package org.rollbus.clients;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.LocalDateTime;
import java.util.Properties;
import org.junit.jupiter.api.Test;

/** ClickHouse's JDBC driver with its default settings against the local endpoint. */
class JdbcTest {
    private static Connection connect(String user, String password) throws SQLException {
        Properties login = new Properties();
        login.setProperty("user", user);
        login.setProperty("password", password);
        return DriverManager.getConnection("jdbc:clickhouse:" + System.getenv("CLICKHOUSE") + "/default", login);
    }

    private static Connection owner() throws SQLException {
        return connect("default", System.getenv("OWNER"));
    }

    private static void createTable(Connection connection, String name) throws SQLException {
        try (var statement = connection.createStatement()) {
            statement.execute("CREATE TABLE " + name + " (id UInt32, name String) ENGINE = MergeTree ORDER BY id");
        }
    }

    @Test
    void aBatchIsInsertedWhole() throws SQLException {
        try (Connection connection = owner()) {
            createTable(connection, "jdbc_batch");
            try (var insert = connection.prepareStatement("INSERT INTO jdbc_batch (id, name) VALUES (?, ?)")) {
                for (int id = 0; id < 20_000; id++) {
                    insert.setInt(1, id);
                    insert.setString(2, "it's; (" + id + ")");
                    insert.addBatch();
                }
                assertEquals(20_000, insert.executeBatch().length);
            }
            try (var statement = connection.createStatement();
                    ResultSet row = statement.executeQuery("SELECT count(), sum(id), any(name LIKE 'it''s; (%') FROM jdbc_batch")) {
                assertTrue(row.next());
                assertEquals(20_000, row.getLong(1));
                assertEquals(199_990_000L, row.getLong(2));
                assertTrue(row.getBoolean(3));
            }
        }
    }

    @Test
    void aLargeResultArrivesWhole() throws SQLException {
        try (Connection connection = owner();
                var statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT number, toString(number) FROM numbers(1000000)")) {
            long count = 0, sum = 0;
            while (rows.next()) {
                count++;
                sum += rows.getLong(1);
            }
            assertEquals(1_000_000, count);
            assertEquals(499_999_500_000L, sum);
        }
    }

    @Test
    void valuesOfManyTypesAreRead() throws SQLException {
        try (Connection connection = owner();
                var asked = connection.prepareStatement("SELECT ?, ?, toDateTime('2026-01-02 03:04:05'), [1, 2], NULL")) {
            asked.setString(1, "'; DROP TABLE numbers --");
            asked.setLong(2, 41);
            try (ResultSet row = asked.executeQuery()) {
                assertTrue(row.next());
                assertEquals("'; DROP TABLE numbers --", row.getString(1));
                assertEquals(41, row.getLong(2));
                assertEquals(LocalDateTime.of(2026, 1, 2, 3, 4, 5), row.getObject(3, LocalDateTime.class));
                assertEquals("[1, 2]", row.getString(4));
                assertEquals(null, row.getObject(5));
                assertFalse(row.next());
            }
        }
    }

    @Test
    void tablesAndColumnsAreListed() throws SQLException {
        try (Connection connection = owner()) {
            createTable(connection, "jdbc_listed");
            try (ResultSet tables = connection.getMetaData().getTables(null, "default", "jdbc_listed", null)) {
                assertTrue(tables.next());
                assertEquals("jdbc_listed", tables.getString("TABLE_NAME"));
            }
            try (ResultSet columns = connection.getMetaData().getColumns(null, "default", "jdbc_listed", null)) {
                assertTrue(columns.next());
                assertEquals("id", columns.getString("COLUMN_NAME"));
            }
        }
    }

    @Test
    void thePlainViewsAreListedDescribedAndReadByTheUserThatOnlyReads() throws SQLException {
        String views = System.getenv("VIEWS");
        try (Connection connection = connect("readonly", System.getenv("READER"))) {
            try (ResultSet columns = connection.getMetaData().getColumns(null, views, "fates", "fate")) {
                assertTrue(columns.next());
                assertEquals("String", columns.getString("TYPE_NAME"));
            }
            try (var asked = connection.prepareStatement("SELECT count() FROM " + views + ".fates WHERE run_id = ? AND fate = ?")) {
                asked.setString(1, "main");
                asked.setString(2, "trained");
                try (ResultSet row = asked.executeQuery()) {
                    assertTrue(row.next());
                    assertEquals(4, row.getLong(1));
                }
            }
        }
    }

    @Test
    void anErrorHasItsCode() throws SQLException {
        try (Connection connection = owner(); var statement = connection.createStatement()) {
            assertEquals(60, codeOf(() -> statement.executeQuery("SELECT * FROM nowhere")));
            assertEquals(395, codeOf(() -> statement.executeQuery("SELECT throwIf(1)")));
        }
    }

    @Test
    void aWrongPasswordIsRefusedAndTheReaderReadsOnly() throws SQLException {
        assertEquals(516, codeOf(() -> {
            try (Connection stranger = connect("default", "wrong"); var statement = stranger.createStatement()) {
                statement.executeQuery("SELECT 1");
            }
        }));
        try (Connection reader = connect("readonly", System.getenv("READER")); var statement = reader.createStatement()) {
            try (ResultSet row = statement.executeQuery("SELECT 1")) {
                assertTrue(row.next());
            }
            assertEquals(164, codeOf(() -> statement.execute("CREATE TABLE mine (x UInt8) ENGINE = Memory")));
        }
    }

    private static int codeOf(Asked asked) {
        return assertThrows(SQLException.class, asked::ask).getErrorCode();
    }

    private interface Asked {
        void ask() throws SQLException;
    }
}
