#!/usr/bin/env bash
# Make sure that there is a Chromium for the tests of the viewer; print nothing if there is.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && exit 0
done
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "Installing Chromium, which the tests of the viewer need."
    apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 || {
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends chromium >/dev/null
    }
    exit 0
fi
echo "The tests of the viewer need Chromium: install it (Debian: apt-get install chromium) and try again." >&2
exit 1
