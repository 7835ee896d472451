"""Models that tell the book each time that they are asked."""

from __future__ import annotations

from crash_book import Book

from holdfast.agents.model import ModelRequest
from holdfast.testing import Reply, ScriptedModel


def scripted(agent: str, book: Book, *script: Reply) -> ScriptedModel:
    def asked(request: ModelRequest) -> None:
        book.start(agent, request.call_id, request.attempt)

    return ScriptedModel(script, on_request=asked)
