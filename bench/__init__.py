"""What Clew costs: ratios against a floor measured in the same run. Run it with `make bench`.

Out comes one table (`--json` for data). Every time is CPU time, the smallest of several runs,
with floor and subject taking turns, so that a busy machine disturbs both alike.
"""
