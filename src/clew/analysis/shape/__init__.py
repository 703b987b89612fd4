"""Where a dimension of an op's result comes from: rules by op, on shapes and constants alone.

`rules.explain` takes one call of an op and a dimension of its result and gives a `Step`. Nothing
here knows runs or events; `analysis.shape_chain` follows the steps through a run.
"""
