"""The events of a session and of all that it started, here and elsewhere, as one stream."""

from holdfast.interleaving.place import Called, Here
from holdfast.interleaving.stream import Interleaving

__all__ = ["Called", "Here", "Interleaving"]
