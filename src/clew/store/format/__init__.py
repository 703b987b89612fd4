"""Meaning of the bytes of a trace: schemas, table rows, shards, payloads; for read and write."""
