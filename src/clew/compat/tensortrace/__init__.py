"""TensorTracer on Clew: variables of a model over a run, gathered from all ranks, saved to HDF5.

from clew.compat.tensortrace import H5PYSaverCallback, ModelTracer, Variable, stack_padded_tensors

Both forms of its interface work: `ModelTracer(model, [paths], ...)` of its README, whose callbacks
get lists, and `ModelTracer(model, Variable([paths], ...))`, whose callbacks get a result.
"""

from clew.compat.engine.collecting import GlobalVariableResult, LocalVariableResult
from clew.compat.tensortrace.h5py_tracer import H5PYSaverCallback, H5PYTracedModel, ModelTracerH5PY
from clew.compat.tensortrace.tracer import (
    ModelTracer,
    TracedModel,
    stack_padded_tensors,
    stack_tensors,
    trace_model,
)
from clew.compat.tensortrace.utils import (
    exact_path_matching,
    extract_nested_values,
    get_object_items,
    get_object_value,
    partial_path_matching,
)
from clew.compat.tensortrace.variable import ResultEntry, Variable

__all__ = [
    "GlobalVariableResult", "H5PYSaverCallback", "H5PYTracedModel", "LocalVariableResult",
    "ModelTracer", "ModelTracerH5PY", "ResultEntry", "TracedModel", "Variable",
    "exact_path_matching", "extract_nested_values", "get_object_items", "get_object_value",
    "partial_path_matching", "stack_padded_tensors", "stack_tensors", "trace_model",
]  # fmt: skip
