// ClickHouse's Go client over HTTP against the local endpoint.
package clients

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

func connect(t *testing.T, user, password, database string, method clickhouse.CompressionMethod) driver.Conn {
	t.Helper()
	options := &clickhouse.Options{
		Addr:        []string{os.Getenv("CLICKHOUSE_ADDRESS")},
		Protocol:    clickhouse.HTTP,
		Auth:        clickhouse.Auth{Database: database, Username: user, Password: password},
		DialTimeout: 5 * time.Second,
	}
	if method != clickhouse.CompressionNone {
		options.Compression = &clickhouse.Compression{Method: method}
	}
	connection, err := clickhouse.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func owner(t *testing.T) driver.Conn {
	t.Helper()
	return connect(t, "default", os.Getenv("OWNER"), "default", clickhouse.CompressionNone)
}

func codeOf(err error) int32 {
	var exception *clickhouse.Exception
	if errors.As(err, &exception) {
		return exception.Code
	}
	return 0
}

func table(t *testing.T, connection driver.Conn, name string) {
	t.Helper()
	if err := connection.Exec(context.Background(), "CREATE TABLE "+name+" (id UInt32, name String) ENGINE = MergeTree ORDER BY id"); err != nil {
		t.Fatal(err)
	}
}

func TestABatchIsInsertedWhole(t *testing.T) {
	methods := map[string]clickhouse.CompressionMethod{
		"plain": clickhouse.CompressionNone, "gzip": clickhouse.CompressionGZIP, "deflate": clickhouse.CompressionDeflate,
	}
	for name, method := range methods {
		t.Run(name, func(t *testing.T) {
			connection := connect(t, "default", os.Getenv("OWNER"), "default", method)
			table(t, connection, "go_"+name)
			batch, err := connection.PrepareBatch(context.Background(), "INSERT INTO go_"+name)
			if err != nil {
				t.Fatal(err)
			}
			for id := range uint32(50_000) {
				if err := batch.Append(id, "name"); err != nil {
					t.Fatal(err)
				}
			}
			if err := batch.Send(); err != nil {
				t.Fatal(err)
			}
			var count, sum uint64
			if err := connection.QueryRow(context.Background(), "SELECT count(), sum(id) FROM go_"+name).Scan(&count, &sum); err != nil {
				t.Fatal(err)
			}
			if count != 50_000 || sum != 1_249_975_000 {
				t.Fatalf("%d rows, sum %d", count, sum)
			}
		})
	}
}

func TestValuesAreBoundOnTheServer(t *testing.T) {
	text := "'; DROP TABLE numbers --"
	ctx := clickhouse.Context(context.Background(), clickhouse.WithParameters(clickhouse.Parameters{"text": text, "low": "2"}))
	var got string
	var low uint8
	if err := owner(t).QueryRow(ctx, "SELECT {text:String}, {low:UInt8}").Scan(&got, &low); err != nil {
		t.Fatal(err)
	}
	if got != text || low != 2 {
		t.Fatalf("%q, %d", got, low)
	}
}

func TestALargeResultStreams(t *testing.T) {
	rows, err := owner(t).Query(context.Background(), "SELECT number FROM numbers(1000000)")
	if err != nil {
		t.Fatal(err)
	}
	var number, sum, count uint64
	for rows.Next() {
		if err := rows.Scan(&number); err != nil {
			t.Fatal(err)
		}
		count, sum = count+1, sum+number
	}
	if rows.Err() != nil || count != 1_000_000 || sum != 499_999_500_000 {
		t.Fatalf("%d rows, sum %d, %v", count, sum, rows.Err())
	}
}

func TestASettingHoldsForItsRequestAlone(t *testing.T) {
	connection, asked := owner(t), "SELECT toString(getSetting('max_threads'))"
	var before, during, after string
	ctx := clickhouse.Context(context.Background(), clickhouse.WithSettings(clickhouse.Settings{"max_threads": 3}))
	for place, each := range map[*string]context.Context{&before: context.Background(), &during: ctx} {
		if err := connection.QueryRow(each, asked).Scan(place); err != nil {
			t.Fatal(err)
		}
	}
	if err := connection.QueryRow(context.Background(), asked).Scan(&after); err != nil {
		t.Fatal(err)
	}
	if during != "3" || before != after {
		t.Fatalf("%s, %s, %s", before, during, after)
	}
}

func TestAnErrorHasItsCode(t *testing.T) {
	err := owner(t).Exec(context.Background(), "SELECT * FROM nowhere")
	if codeOf(err) != 60 && (err == nil || !strings.Contains(err.Error(), "Code: 60")) {
		t.Fatal(err)
	}
}

func TestTheReaderReadsOnly(t *testing.T) {
	reader := connect(t, "readonly", os.Getenv("READER"), "default", clickhouse.CompressionNone)
	var one uint8
	if err := reader.QueryRow(context.Background(), "SELECT 1").Scan(&one); err != nil || one != 1 {
		t.Fatal(err)
	}
	for _, statement := range []string{"DROP TABLE go_plain", "SELECT file('/etc/hostname')", "KILL QUERY WHERE 1"} {
		if err := reader.Exec(context.Background(), statement); err == nil || !strings.Contains(err.Error(), "READONLY") {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func TestAWrongPasswordIsRefused(t *testing.T) {
	stranger := connect(t, "default", "wrong", "default", clickhouse.CompressionNone)
	if err := stranger.Ping(context.Background()); err == nil {
		t.Fatal("let in")
	}
}
