#!/usr/bin/env bash
# Run tests/integration and the tests of watching with the native engine, where it could be built; tests/conformance and
# tests/native choose it themselves.
set -euo pipefail
cd "$(dirname "$0")/.."

# Files that are left out, as the engine makes no difference to them: add one only if what it tests
# comes after recording, and is tested with the python engine anyway.
LEFT_OUT=(
    bench                                     # measures each engine itself
    native_build native_commands native_load  # of the library, not of what it records
    cli exist fuzz links strangers            # files: who writes over them, reads and mistrusts them
    places remote foreign_values              # where a trace is written to, and what is read back
    escapes graph_files notebook report       # texts and pages that are made of a trace
    exports live_hdf5 notebook_cells
    page_graph page_charts diff_page file_costs
    pytest_plugin snapshots                   # of pytest, and of the calls of modules alone
    diff_compiled                             # compiles for long, and compares what was recorded
)

if ! .venv/bin/python -c 'import torch, sys; from clew.native.loading import load; sys.exit(load() is None)'; then
    echo "The native engine is not built here: its tests are left out. 'clew doctor' says why."
    exit 0
fi
ignored=()
for name in "${LEFT_OUT[@]}"; do
    file=tests/integration/test_$name.py
    test -f "$file" || { echo "$0: there is no $file"; exit 1; }
    ignored+=(--ignore "$file")
done
echo "With the native engine:"
# The other files are of `clew.watch`, which has native code of its own before Python 3.12.
CLEW_ENGINE=native .venv/bin/python -m pytest -q -n "${WORKERS:-2}" tests/integration "${ignored[@]}" \
    tests/unit/frames tests/no_torch/frames tests/no_torch/test_watch.py \
    tests/no_torch/test_watch_defects.py tests/compat/test_ttracker.py
