"""Every program of the suite, by name."""

from tests.conformance.programs import (
    autograd_programs,
    host_programs,
    memory_programs,
    module_programs,
    number_programs,
)
from tests.conformance.programs.registry import PROGRAMS, Prepared

__all__ = [
    "PROGRAMS",
    "Prepared",
    "autograd_programs",
    "host_programs",
    "memory_programs",
    "module_programs",
    "number_programs",
]
