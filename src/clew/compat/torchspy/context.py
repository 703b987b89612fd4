"""The names of `torchspy.context`."""

from clew.compat.torchspy.saver import DebugContext, get_debug_context

__all__ = ["DebugContext", "get_debug_context"]
