#!/bin/sh
# Checks for tools that `make` needs and cannot install itself; prints the commands that install the missing ones.
set -u

packages="" # names of Debian and Ubuntu packages
advice=""

have() { command -v "$1" >/dev/null 2>&1; }
# at_least FOUND WANTED: succeeds if the version FOUND, such as 1.90.0, is WANTED or newer.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

have cc || packages="$packages build-essential"
have git || packages="$packages git"

python=${PYTHON:-python3}
if ! have "$python"; then
    packages="$packages python3 python3-venv"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    advice="$advice
  Python 3.11 or newer ($python is $("$python" -c 'import platform; print(platform.python_version())')); if another one is installed:
      make PYTHON=python3.12"
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    packages="$packages python3-venv"
fi

rustup="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . \"\$HOME/.cargo/env\""
have curl || have rustup || have cargo || packages="$packages ca-certificates curl"
required=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! have cargo || ! have rustc; then
    advice="$advice
  Rust $required or newer:
      $rustup"
else
    found=$(rustc --version | cut -d ' ' -f 2)
    if ! at_least "$found" "$required"; then
        advice="$advice
  Rust $required or newer ($(command -v rustc) is $found):"
        if have rustup; then
            advice="$advice
      rustup update stable"
        else
            advice="$advice
      $rustup"
        fi
    fi
fi

[ -z "$packages$advice" ] && exit 0
{
    echo "Building Engram needs:"
    if [ -n "$packages" ]; then
        echo "  Packages; on Debian and Ubuntu:"
        # root needs no sudo, and a fresh container has none
        [ "$(id -u)" = 0 ] && sudo="" || sudo="sudo "
        echo "      ${sudo}apt-get update && ${sudo}apt-get install -y$packages"
    fi
    [ -n "$advice" ] && echo "$advice" | sed '1d' # without the empty first line
    echo "Then run make again."
} >&2
exit 1
