#!/usr/bin/env bash
# Build the native engine with sanitizers, each into a folder of its own, and run programs over it.
# `scripts/soak.sh [SECONDS] [address|thread]…`: minutes to build, then so many seconds each.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
SECONDS_EACH=${1:-60}
shift || true
KINDS=${*:-address thread}
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
export PYTHONPATH="src:."
# Without it the sanitizers see none of what Python allocates.
export PYTHONMALLOC=malloc
failed=0

# What torch and Python leak is not ours to mend. The libraries of torch are built without
# sanitizers, so what containers of theirs hold is not known to ours.
export ASAN_OPTIONS="detect_leaks=0:detect_container_overflow=0:abort_on_error=0:exitcode=66"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export TSAN_OPTIONS="suppressions=$PWD/tests/native/tsan.supp:exitcode=66:report_signal_unsafe=0"

library() { ${CXX:-c++} -print-file-name="$1"; }

soak() {
  local kind=$1 flags=$2 preload=$3 runner=$4 to="$FOLDER/$1"
  # The C++ library comes with it: Python has none, and exceptions are looked up at the start.
  local libraries="$preload $(library libstdc++.so)"
  if [ ! -e "$preload" ]; then
    echo "soak: $kind: not run, the compiler has no $preload"
    return
  fi
  mkdir "$to"
  echo "soak: $kind: building with $flags"
  # Before a fork pyarrow takes more locks at once than the detector of deadlocks can count.
  if ! TSAN_OPTIONS="$TSAN_OPTIONS:detect_deadlocks=0" CXXFLAGS="$flags" LD_PRELOAD="$libraries" $runner "$PYTHON" -m clew build --to "$to" >"$to.log" 2>&1; then
    tail -n 30 "$to.log"
    echo "soak: $kind: the build failed"
    failed=1
    return
  fi
  echo "soak: $kind: running programs for $SECONDS_EACH seconds"
  if CLEW_NATIVE="$to" LD_PRELOAD="$libraries" $runner "$PYTHON" -m tests.native.soak "$SECONDS_EACH"; then
    echo "soak: $kind: nothing found"
  else
    echo "soak: $kind: FAILED"
    failed=1
  fi
}

for kind in $KINDS; do
  case $kind in
    address)
      soak address "-g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr" \
        "$(library libasan.so)" env ;;
    thread)
      # A process that was forked from one with threads is not supported by this sanitizer; and it
      # needs addresses that are not random.
      export CLEW_SOAK_NO_FORK=1
      soak thread "-g1 -fno-omit-frame-pointer -fsanitize=thread" "$(library libtsan.so)" "setarch -R" ;;
    *) echo "soak: there is no $kind"; failed=1 ;;
  esac
done
exit $failed
