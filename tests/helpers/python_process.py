"""Python programs in processes of their own, which start quickly.

A Python process that has imported Engram waits for requests; for each, it forks a child that runs a program. It has
only one thread and opens nothing, so that a child is like a new process. In `make test-all`, each program runs in a
new interpreter instead, as users start it.
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from helpers.support import runs_all_tests

PIPE = subprocess.PIPE
DEVNULL = subprocess.DEVNULL

PARENT = """
import asyncio, concurrent.futures, json, logging, mmap, os, secrets, signal, socket, sys, tempfile, tomllib
import numpy as np, numpy.typing, pydantic.type_adapter, pytest, rich.live, rich.progress, rich.table, typer.testing
import engram, engram.cli, engram.data.numpy

channel = socket.socket(fileno=int(sys.argv[1]))


def run(request, files):
    channel.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if request["new_session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    sys.argv[:] = ["-c", *request["arguments"]]
    names = vars(sys.modules["__main__"])
    code = request["code"]
    names.clear()
    names.update(__name__="__main__", __spec__=None)
    exec(compile(code, "<string>", "exec"), names)


# A child has only the thread that forks: a lock that another one holds would stay locked.
if os.path.isdir("/proc/self/task"):
    assert len(os.listdir("/proc/self/task")) == 1
while True:
    message, files, _, _ = socket.recv_fds(channel, 1 << 20, 3)
    if not message:
        break
    request = json.loads(message)
    try:
        reply = os.waitpid(request["wait"], os.WUNTRACED)[1] if request["wait"] else os.fork()
    except OSError as error:
        reply = -error.errno
    if reply == 0 and not request["wait"]:
        break
    for file in files:
        os.close(file)
    channel.send(str(reply).encode())
if message:
    run(request, files)
"""


class Parent:
    """The process that forks children."""

    def __init__(self):
        self._lock = threading.Lock()
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with other:
            # It ends once this process has closed the channel.
            self._process = subprocess.Popen(
                [sys.executable, "-c", PARENT, str(other.fileno())],
                pass_fds=[other.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    def start(self, code, arguments, files, cwd, *, new_session):
        """Forks a child that runs the program; returns its process id."""
        request = {
            "wait": None,
            "code": code,
            "arguments": arguments,
            "directory": str(cwd or Path.cwd()),
            "environment": dict(os.environ),
            "path": ["", *sys.path],
            "new_session": new_session,
        }
        return self._call(request, files)

    def wait(self, pid):
        """Waits until a child has ended or stopped; returns its status as `os.waitpid` does."""
        return self._call({"wait": pid}, [])

    def _call(self, request, files):
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], files)
            reply = int(self._channel.recv(100))
        if reply < 0:
            raise OSError(-reply, os.strerror(-reply))
        return reply


class NewInterpreters:
    """Starts a new interpreter for each program; its methods are those of `Parent`."""

    def __init__(self):
        # An object of `Popen` that is deleted before the process has ended would wait for it in our place.
        self._processes = {}

    def start(self, code, arguments, files, cwd, *, new_session):
        path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=new_session,
        )
        self._processes[process.pid] = process
        return process.pid

    def wait(self, pid):
        status = os.waitpid(pid, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            self._processes.pop(pid).returncode = os.waitstatus_to_exitcode(status)
        return status


_parents = []
_parents_lock = threading.Lock()


def parent():
    """What starts the programs of this process, and waits for them."""
    with _parents_lock:
        if not _parents:
            _parents.append(NewInterpreters() if runs_all_tests() else Parent())
        return _parents[0]


def script(path):
    """Returns a program that runs the file of a script."""
    return f"import runpy, sys; sys.argv[0] = {str(path)!r}; runpy.run_path({str(path)!r}, run_name='__main__')"


class PythonProcess:
    """A process that runs a Python program, with arguments; its attributes and methods are those of `Popen`.

    Without an argument, its standard streams are those of this process.
    """

    def __init__(self, code, *arguments, stdin=None, stdout=None, stderr=None, cwd=None, new_session=False):
        self.stdin = self.stdout = self.stderr = self.returncode = None
        files, opened = [], []
        for number, file in enumerate((stdin, stdout, stderr)):
            if file == PIPE:
                ends = os.pipe()
                mine, its = ends if number else ends[::-1]
                setattr(self, ("stdin", "stdout", "stderr")[number], os.fdopen(mine, "r" if number else "w"))
                opened.append(its)
            elif file == DEVNULL:
                opened.append(its := os.open(os.devnull, os.O_RDWR))
            else:
                its = number if file is None else file if isinstance(file, int) else file.fileno()
            files.append(its)
        try:
            self.pid = parent().start(code, [*map(str, arguments)], files, cwd, new_session=new_session)
        finally:
            for file in opened:
                os.close(file)
        self._lock = threading.Lock()
        # It stays open as long as this object, because several threads may use it.
        self._end = os.pidfd_open(self.pid)
        weakref.finalize(self, os.close, self._end)

    def send_signal(self, number):
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end, number)

    def freeze(self):
        """Stops the process without closing its connections; returns when it has stopped, or ended before that."""
        with self._lock:
            if self.returncode is None:
                signal.pidfd_send_signal(self._end, signal.SIGSTOP)
                self._wait_for_stop_or_end()

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout=None):
        """Waits for the end of the process; returns its exit status, or minus the number of the signal."""
        if self.returncode is None:
            # `select.select` refuses file descriptors above 1023.
            end = select.poll()
            end.register(self._end, select.POLLIN)
            if not end.poll(None if timeout is None else math.ceil(1000 * timeout)):
                raise subprocess.TimeoutExpired("a Python process", timeout)
            with self._lock:
                if self.returncode is None:
                    self._wait_for_stop_or_end()
        return self.returncode

    def _wait_for_stop_or_end(self):
        """Keeps the exit status if the process has ended. The caller holds the lock."""
        status = parent().wait(self.pid)
        if not os.WIFSTOPPED(status):
            self.returncode = os.waitstatus_to_exitcode(status)

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, text=None, timeout=60.0):
        """Writes to stdin, reads stdout and stderr to their ends, and waits; returns what it has read."""
        read = {}

        def read_all(file):
            read[file] = file.read()
            file.close()

        outputs = [file for file in (self.stdout, self.stderr) if file and not file.closed]
        threads = [threading.Thread(target=read_all, args=(file,), daemon=True) for file in outputs]
        for thread in threads:
            thread.start()
        if self.stdin and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(text or "")
                self.stdin.close()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return read.get(self.stdout), read.get(self.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in (self.stdin, self.stdout, self.stderr):
            if file:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
        self.wait()


def run_program(code, *arguments, seconds=60.0, stderr=""):
    """Runs a Python program; checks that it succeeds, and what it prints on stderr; returns its output."""
    process = PythonProcess(code, *arguments, stdout=PIPE, stderr=PIPE)
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, stderr), output
    return output
