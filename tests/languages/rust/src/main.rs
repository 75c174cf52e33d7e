//! Read records with apache-avro: lines of {"schema", "hex"} on standard input, the same records as lines of JSON on
//! standard output. Whole numbers come out as decimal texts, and bytes as hexadecimal digits.
use std::io::{stdin, BufRead};

use apache_avro::{reader::datum::GenericDatumReader, types::Value as Avro, Schema};
use serde_json::{json, Value};

/// Bytes of the single-object encoding before the record: a mark and the schema's fingerprint.
const HEADER_BYTES: usize = 10;

fn plain(value: Avro) -> Value {
    match value {
        Avro::Null => Value::Null,
        Avro::Boolean(is_true) => json!(is_true),
        Avro::Int(number) => json!(number.to_string()),
        Avro::Long(number) => json!(number.to_string()),
        Avro::Double(number) => json!(number),
        Avro::String(text) | Avro::Enum(_, text) => json!(text),
        Avro::Bytes(bytes) => json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        Avro::Union(_, branch) => plain(*branch),
        Avro::Array(items) => items.into_iter().map(plain).collect(),
        Avro::Map(items) => items.into_iter().map(|(name, item)| (name, plain(item))).collect(),
        Avro::Record(fields) => fields.into_iter().map(|(name, field)| (name, plain(field))).collect(),
        other => panic!("no record of ours has {other:?}"),
    }
}

fn main() {
    for line in stdin().lock().lines() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let schema = Schema::parse(&line["schema"]).unwrap();
        let hex = line["hex"].as_str().unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let mut rest = &bytes[HEADER_BYTES..];
        let record = GenericDatumReader::builder(&schema).build().unwrap().read_value(&mut rest).unwrap();
        assert!(rest.is_empty(), "{} bytes are left of {}", rest.len(), line["schema"]["name"]);
        println!("{}", plain(record));
    }
}
