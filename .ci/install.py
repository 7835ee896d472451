"""Install a lock file with pip and tell how far it is, in few lines.

`python .ci/install.py FILE` installs into the environment of the Python that runs it.
pip by itself either says nothing for a minute or prints some hundred lines.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

LOOK_EVERY = 0.5
TELL_EVERY = 5.0  # seconds between lines where no terminal shows a line that is rewritten
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-input")


def main() -> int:
    lock = Path(sys.argv[1])
    named = sum("==" in line for line in lock.read_text().splitlines() if line[:1].isalnum())
    show(f"Installing {lock.name} into {sys.prefix}: up to {named} packages.\n")
    before, started = installed(), time.monotonic()
    clear = "\r\x1b[K" if sys.stdout.isatty() else ""
    with tempfile.NamedTemporaryFile() as output:
        log, told = Path(output.name), started
        pip = subprocess.Popen(  # noqa: S603 - our own Python
            [*PIP, "--progress-bar=off", "--require-hashes", "-r", str(lock)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while is_running(pip):
            if clear:
                show(f"{clear}  {progress(log, before)}")
            elif time.monotonic() - told >= TELL_EVERY:
                show(f"  {progress(log, before)}\n")
                told = time.monotonic()
        if pip.returncode:
            show(f"{clear}{log.read_text()}")
        else:
            show(
                f"{clear}  {installed() - before} installed, {time.monotonic() - started:.0f} s.\n"
            )
    return pip.returncode


def is_running(pip: subprocess.Popen[bytes]) -> bool:
    """Wait a little for the end of pip."""
    try:
        pip.wait(LOOK_EVERY)
    except subprocess.TimeoutExpired:
        return True
    return False


def progress(log: Path, before: int) -> str:
    """Say what pip does now, from its output so far and from what it has installed."""
    lines = log.read_text().splitlines()
    if unpacking := [line for line in lines if line.startswith("Installing collected packages:")]:
        return f"unpacked {installed() - before} of {unpacking[0].count(',') + 1}"
    found = [line.split()[1] for line in lines if line.startswith(("Collecting ", "Processing "))]
    return f"fetched {len(found)}{f', now {Path(found[-1]).name}' if found else ''}"


def installed() -> int:
    return len(list(Path(sysconfig.get_path("purelib")).glob("*.dist-info")))


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
