"""ibinn explore as a process, for the tests of what it does from outside."""

import contextlib
import os
import re
import signal
import subprocess
import sys


@contextlib.contextmanager
def serving(folder, *options):
    """(address, process) of a server on a free port; interrupted at the end."""
    command = [sys.executable, "-m", "ibinn.cli", "explore", str(folder), "--no-browser", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        lines = []
        while not (found := re.search(r"open (http://\S+/)", lines[-1] if lines else "")):
            line = process.stdout.readline()
            assert line, f"it ended: {lines}"
            lines.append(line)
        process.lines = lines
        yield found[1], process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
