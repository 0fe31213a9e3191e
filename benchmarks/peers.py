"""Creates a virtual environment under `.bench/` for each peer, from pinned requirements."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench"
PINS = Path(__file__).resolve().parent / "peers"
PEERS = (
    "reverb",
    "cpprb",
    "torchrl",
    "flashbax",
    "ale",
)  # ale is not an engine: it records the frames of Pong that the engines store
# Created by `make bench`.
MADE = {
    "frameworks": ROOT / ".venv-frameworks" / "bin" / "python",
    "tf_agents": ROOT / ".venv-outside" / "bin" / "python",
}
VERSION = (3, 11)  # the newest CPython that dm-reverb 0.14 supports


def python_of(engine: str) -> str:
    """Path of the interpreter that runs the worker of `engine`.

    A peer's environment is created on first use; `make bench` creates those in `MADE`. Other engines use the
    interpreter of this process.
    """
    if engine in MADE:
        if not MADE[engine].exists():
            msg = f"{MADE[engine]} does not exist; run `make bench` to create it"
            raise FileNotFoundError(msg)
        return str(MADE[engine])
    return str(environment(engine)) if engine in PEERS else sys.executable


def environment(peer: str) -> Path:
    """Creates the environment of `peer` if its pins are not installed yet; returns its interpreter."""
    pins = PINS / f"{peer}.txt"
    home = HOME / peer
    python = home / "bin" / "python"
    stamp = home / "pins.sha256"
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="ascii") == digest:
        return python
    log(f"creating {home.relative_to(ROOT)} from {pins.relative_to(ROOT)} (once; takes some minutes)")
    shutil.rmtree(home, ignore_errors=True)
    run([interpreter(), "-m", "venv", str(home)])
    run([str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(pins)])
    stamp.write_text(digest, encoding="ascii")
    return python


def interpreter() -> str:
    """Path of a CPython that the peers support."""
    if sys.version_info[:2] == VERSION:
        return sys.executable
    name = f"python{VERSION[0]}.{VERSION[1]}"
    path = shutil.which(name)
    if path is None:
        msg = f"the peers need `{name}` on PATH, which has none; this is Python {sys.version.split()[0]}"
        raise FileNotFoundError(msg)
    return path


def run(command: list[str]) -> None:
    """Runs a command; raises an error with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"`{' '.join(command)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise RuntimeError(msg)


def log(text: str) -> None:
    """Prints progress to stderr."""
    print(text, file=sys.stderr, flush=True)
