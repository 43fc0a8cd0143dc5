"""Code in a process that has imported torch and numpy, and nothing else: forked from one that waits, for speed."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

SERVER = """
import json, os, sys, traceback
import numpy, torch
for line in sys.stdin:
    code, folder, path, out, err = json.loads(line)
    process = os.fork()
    if not process:
        status = 1
        try:
            for number, name in ((1, out), (2, err)):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
            os.chdir(folder)
            sys.path[:0] = path
            exec(code, {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@functools.cache
def server() -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", SERVER], env=environment, text=True, **pipes)  # ends with its stdin


def fresh_python(code: str, cwd: Path | str = "/", path: Path | None = None) -> str:
    """What ``code`` prints, run in ``cwd``, with ``path`` before all that is installed."""
    if not hasattr(os, "fork"):  # on Windows
        code = f"import sys; sys.path[:0] = {[] if path is None else [str(path)]}\n{code}"
        done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout
    waiting = server()
    with TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        asked = [code, str(cwd), [] if path is None else [str(path)], str(out), str(err)]
        print(json.dumps(asked), file=waiting.stdin, flush=True)
        status = waiting.stdout.readline().strip()
        assert status == "0", err.read_text()
        return out.read_text()
