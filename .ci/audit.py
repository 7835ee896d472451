"""Ask an advisory service about every version in the lock files.

Run by `make audit`, with the Python of an environment that has pip-audit. Ends with 1 if an
advisory is known, and with 0 if none is, or if no service could be asked: then it says so.
`OUTLAST_AUDIT_URL` names another service than OSV's own that answers as it does.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOCKS = ("requirements.lock", "requirements-dev.lock")


def main() -> int:
    found: dict[str, list[str]] = {}
    for lock in LOCKS:
        report = audited(lock)
        if report is None:
            return 0
        found |= advisories(report)
    for version, names in sorted(found.items()):
        print(f"{version}: {', '.join(names)}")
    print(f"{len(found)} of the locked versions have a known advisory")
    return 1 if found else 0


def audited(lock: str) -> dict[str, Any] | None:
    """Return pip-audit's report of a lock file, or None, and why, if it could not make one."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off"]
        command += ["--vulnerability-service", "osv", "--disable-pip", "--require-hashes"]
        if url := os.environ.get("OUTLAST_AUDIT_URL"):
            command += ["--osv-url", url]
        command += ["--requirement", lock, "--format", "json", "--output", str(report)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if not report.exists():
            *_, why = ended.stderr.strip().splitlines() or ["it said nothing"]
            print(f"NOT CHECKED: pip-audit could not ask an advisory service: {why}")
            return None
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def advisories(report: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of what is known, by version: `h11 0.14.0` has `CVE-2025-43859`."""
    return {
        f"{each['name']} {each['version']}": sorted(
            next((name for name in known["aliases"] if name.startswith("CVE-")), known["id"])
            for known in each["vulns"]
        )
        for each in report["dependencies"]
        if each.get("vulns")
    }


if __name__ == "__main__":
    sys.exit(main())
