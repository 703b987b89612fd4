#!/usr/bin/env bash
# Run tests/no_torch with every other Python that is found here, in environments that hold what
# Clew itself needs and no torch: a saved trace must open on such a machine. The oldest Python has
# the lowest versions of everything that pyproject.toml allows, extras as well.
#
#   scripts/test_no_torch.sh              all versions below
#   NO_TORCH_PYTHONS=3.12 scripts/test_no_torch.sh
set -euo pipefail
cd "$(dirname "$0")/.."

# Print the path of a working Python of version $1. A pyenv shim exists even when the version it
# stands for is not selected, so each candidate is asked to run.
find_python() {
    local candidate
    local candidates=("python$1")
    if command -v pyenv >/dev/null; then
        while read -r version; do
            candidates+=("$(pyenv root)/versions/$version/bin/python")
        done < <(pyenv versions --bare --skip-aliases | grep -x "${1//./\\.}\.[0-9]*" | sort -rV)
    fi
    for candidate in "${candidates[@]}"; do
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

for version in ${NO_TORCH_PYTHONS:-3.10 3.12 3.13}; do
    if ! python=$(find_python "$version"); then
        echo "no torch, Python $version: not installed here, skipped"
        continue
    fi
    venv=.venv-$version
    constraints=constraints.txt packages=(numpy pyarrow xxhash pytest pysnooper) with=""
    if [[ $version == 3.10 ]]; then
        constraints=constraints-lowest.txt with=", lowest versions"
        packages+=(fsspec h5py pandas resvg-py)
    fi
    if [[ ! $venv/.ready -nt $constraints ]]; then
        "$python" -m venv --clear "$venv"
        "$venv/bin/python" -m pip install -qq --constraint "$constraints" "${packages[@]}"
        touch "$venv/.ready"
    fi
    echo "no torch, Python $version$with:"
    # --confcutdir: the other tests' conftest.py may import torch.
    PYTHONPATH=$PWD/src "$venv/bin/python" -m pytest -q -p no:cacheprovider \
        --confcutdir tests/no_torch tests/no_torch
    if [[ $version == 3.10 ]]; then
        echo "no torch, Python $version$with, watching by native code:"
        PYTHONPATH=$PWD/src "$venv/bin/python" -m clew build --to "$PWD/$venv/native"
        CLEW_NATIVE=$PWD/$venv/native PYTHONPATH=$PWD/src "$venv/bin/python" -m pytest -q \
            -p no:cacheprovider --confcutdir tests/no_torch tests/no_torch/frames \
            tests/no_torch/test_watch.py tests/no_torch/test_watch_defects.py
    fi
done
