#!/usr/bin/env bash
# Run tests/s3: traces in a bucket that moto serves on this machine. s3fs and moto need an older
# python-dateutil than the main environment has, so they have an environment of their own, which
# borrows everything else (torch, pytest) from .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

main=${MAIN_VENV:-.venv}
venv=.venv-s3
if [[ ! $venv/.ready -nt constraints-s3.txt ]]; then
    "$main/bin/python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -qq --requirement constraints-s3.txt
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # After its own packages, so that its own versions win.
    "$main/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$site/borrowed.pth"
    touch "$venv/.ready"
fi
echo "S3, with moto on this machine:"
PYTHONPATH=$PWD/src "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/s3
