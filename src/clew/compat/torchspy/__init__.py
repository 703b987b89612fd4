"""torchspy on Clew: tensors saved from inside a model, the order of module calls, its graph.

from clew.compat.torchspy import CallTracer, DebugContext, TensorSaver
from clew.compat.torchspy.saver import spy_save
"""

from clew.compat.torchspy.saver import DebugContext, TensorSaver, get_debug_context, spy_save
from clew.compat.torchspy.tracer import BaseDebugger, CallTracer

__all__ = [
    "BaseDebugger", "CallTracer", "DebugContext", "TensorSaver", "get_debug_context", "spy_save",
]  # fmt: skip
