#!/bin/sh
# Installs one wheel into a bare environment of every supported Python on this machine, and runs the
# smoke test there. Usage: test_wheel.sh UV WHEEL
set -eu

uv=$1
wheel=$2
versions="3.11 3.12 3.13"
environments=build/environments
passed="" absent=""

# Prints the path of an interpreter of exactly this version; fails if this machine has none.
find_python() {
    for candidate in "python$1" "$(pyenv prefix "$(pyenv latest "$1" 2>/dev/null)" 2>/dev/null)/bin/python"; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    "$uv" python find --no-python-downloads --no-project "$1" 2>/dev/null
}

for version in $versions; do
    if ! python=$(find_python "$version"); then
        absent="$absent $version"
        continue
    fi
    echo "== $wheel on Python $version"
    environment=$environments/$version
    "$uv" venv --quiet --clear --python "$python" "$environment"
    "$uv" pip install --quiet --python "$environment/bin/python" --constraint requirements/dev.txt "$wheel"
    # -I: ignores this checkout and the user's packages.
    "$environment/bin/python" -I tests/wheel/smoke.py
    passed="$passed $version"
done

echo "wheel works on:${passed:- none}"
[ -z "$absent" ] || echo "not found on this machine, so not tested:$absent"
# `make test-all` fails if a Python is missing.
[ -n "$passed" ] && { [ -z "$absent" ] || [ -z "${ENGRAM_TEST_ALL:-}" ]; }
