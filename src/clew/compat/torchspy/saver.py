"""The names of `torchspy.saver`."""

from clew.compat.torchspy import DebugContext, TensorSaver, get_debug_context, logger, spy_save

__all__ = ["DebugContext", "TensorSaver", "get_debug_context", "logger", "spy_save"]
