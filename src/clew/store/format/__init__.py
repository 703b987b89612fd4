"""What the bytes of a trace mean: schemas, table rows, shards, payloads. Used by read and write."""
