"""`python -m conformance`: the protocol's own suite on runs; which of its tests fail, and why.

Returns 1 unless exactly those fail that `not_reading.toml` lists: they are about writing. `--store`
names another store, `--only` a pattern of titles, for looking at one.
"""

import argparse
import asyncio
import sys

from conformance.listed import compare, listed, racy
from conformance.suite import run_suite


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance")
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--only", default="", help="run only tests whose title matches this")
    options = parser.parse_args()
    ended = asyncio.run(run_suite(options.store, options.only))
    wrong = compare(ended, listed(), racy())
    for line in wrong:
        sys.stdout.write(f"{line}\n")
    passed = sum(how == "passed" for how in ended.values())
    sys.stdout.write(f"{passed} of {len(ended)} passed; {len(wrong)} not as listed\n")
    return 1 if wrong or not ended else 0


if __name__ == "__main__":
    sys.exit(main())
