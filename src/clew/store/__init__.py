"""Stores keep a trace and hand out its columns. Knows `events`, never torch."""
