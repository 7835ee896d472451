"""Models that tell the book each time that they are asked."""

from __future__ import annotations

from crash_book import Book

from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.testing import ScriptedModel, ScriptedReply, calls, say


def scripted(agent: str, book: Book, *script: ScriptedReply) -> ScriptedModel:
    def asked(request: ModelRequest) -> None:
        book.start(agent, request.call_id, request.attempt)

    return ScriptedModel(script, on_request=asked)


def obedient(agent: str, book: Book) -> ScriptedModel:
    """A model that calls the tool it is told to, with the gate it is told of, and is done."""

    def script(request: ModelRequest) -> ScriptedReply:
        book.start(agent, request.call_id, request.attempt)
        last = request.view.messages[-1]
        if not isinstance(last, UserMessage):
            return say("It is done.")
        wanted, _, gate = text_of(last.content).partition(" ")
        return calls((wanted, {"gate": gate})) if gate else say("Well met.")

    return ScriptedModel(script)
