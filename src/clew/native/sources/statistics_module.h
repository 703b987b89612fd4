// The statistics as Python functions: a table that the module appends to its own.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "statistics.h"

namespace clew {

// Ends with an empty entry.
extern PyMethodDef statistics_methods[];

// Return a new dict with the fields that `clew.events.statistics` gives, or nullptr with an error.
PyObject* dict_of(const Statistics& found);

}  // namespace clew
