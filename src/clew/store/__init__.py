"""Stores: write the batches of a trace and read its columns. Knows `events`, never torch."""
