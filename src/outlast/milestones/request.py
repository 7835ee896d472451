"""Requests of a loop: as values of their type, as the text that is saved, and as a message."""

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from outlast.agents.runtime.json_value import TypeMismatch, fitted, to_json
from outlast.core.message import Said
from outlast.errors import InvalidInput, RequestChanged
from outlast.milestones.execution import Execution

Req = TypeVar("Req")


class RequestType(Generic[Req]):
    """The type of a loop's requests. `message` is what the agent is told of one."""

    def __init__(self, kind: type[Req], message: Callable[[Req], Said] | None) -> None:
        self._kind = kind
        self._message = message

    @property
    def name(self) -> str:
        return str(getattr(self._kind, "__name__", self._kind))

    def text_of(self, request: Req) -> str:
        """Return a request as it is saved. Raises InvalidInput if it is not of the type."""
        text = to_json(request, "the request is")
        try:
            fitted(text, self._kind)
        except TypeMismatch as why:
            raise InvalidInput(f"the request is no {self.name}: {why}") from why
        return text

    def load(self, execution: Execution) -> Req:
        """Return the request that was saved. Raises RequestChanged if it does not fit any more."""
        text = bytes(execution.request).decode()
        try:
            return cast("Req", fitted(text, self._kind))
        except TypeMismatch as why:
            raise RequestChanged(
                f"the request that was saved is no {self.name} as that is today: {why}; give new"
                " fields defaults, or clear() the execution",
                request=text,
            ) from why

    def is_same(self, execution: Execution, asked: str) -> bool:
        """Say whether a request is the one that was saved, perhaps by code with fewer fields."""
        if bytes(execution.request).decode() == asked:
            return True
        return to_json(self.load(execution)) == to_json(fitted(asked, self._kind))

    def message_of(self, execution: Execution) -> Said:
        """Return what the agent is told: by default a text as it is, and other types as JSON."""
        request = self.load(execution)
        if self._message is not None:
            return self._message(request)
        return request if isinstance(request, str) else to_json(request)
