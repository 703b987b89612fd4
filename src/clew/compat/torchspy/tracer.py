"""The names of `torchspy.tracer`."""

from clew.compat.torchspy import BaseDebugger, CallTracer, logger

__all__ = ["BaseDebugger", "CallTracer", "logger"]
