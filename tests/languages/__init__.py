"""Programs in other languages that read our records with their own Avro libraries: `make test-languages`."""
