"""Pins: which deployment's workers carry a lane. `work.py` says what `claim` makes of them."""

from msgspec import Struct


class Pin(Struct, frozen=True, gc=False):
    """The deployment whose workers carry a lane. Where none of them claims, the current one's do.

    With `stays` the lane waits for them. A lane pinned to `ANYONE` is every deployment's.
    """

    deployment: str
    stays: bool = False


ANYONE = "*"
NO_PIN = Pin("")
