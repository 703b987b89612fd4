"""The names of `torchspy.context`."""

from clew.compat.torchspy import DebugContext, get_debug_context

__all__ = ["DebugContext", "get_debug_context"]
