// Read records with hamba/avro: lines of {"schema", "hex"} on standard input, the same records as lines of JSON on standard output.
// Whole numbers come out as decimal texts, and bytes as hexadecimal digits.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/hamba/avro/v2"
)

type line struct {
	Schema json.RawMessage `json:"schema"`
	Hex    string          `json:"hex"`
}

func plain(schema avro.Schema, value any) any {
	switch value := value.(type) {
	case int64:
		return strconv.FormatInt(value, 10)
	case []byte:
		return hex.EncodeToString(value)
	case []any:
		items := make([]any, len(value))
		for at, item := range value {
			items[at] = plain(schema, item)
		}
		return items
	case map[string]any:
		if len(value) == 1 { // a union's branch: the name of its type with the value
			for name, item := range value {
				if isType(name) {
					return plain(schema, item)
				}
			}
		}
		fields := make(map[string]any, len(value))
		for name, item := range value {
			fields[name] = plain(schema, item)
		}
		return fields
	}
	return value
}

// isType says whether a name is one of Avro's types or of a record, which begins with a capital letter; a field's never does.
func isType(name string) bool {
	switch name {
	case "long", "string", "double", "bytes", "boolean", "array", "map":
		return true
	}
	last := name[strings.LastIndex(name, ".")+1:]
	return unicode.IsUpper(rune(last[0]))
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<26)
	for input.Scan() {
		var one line
		if err := json.Unmarshal(input.Bytes(), &one); err != nil {
			log.Fatal(err)
		}
		schema, err := avro.ParseWithCache(string(one.Schema), "", &avro.SchemaCache{})
		if err != nil {
			log.Fatal(err)
		}
		bytes, err := hex.DecodeString(one.Hex)
		if err != nil {
			log.Fatal(err)
		}
		var record any
		if err := avro.Unmarshal(schema, bytes[10:], &record); err != nil {
			log.Fatal(schema, err)
		}
		text, err := json.Marshal(plain(schema, record))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(text))
	}
}
