"""Describe values and keep their facts, statistics and data; each tensor version once."""
