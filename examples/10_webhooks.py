"""Events posted to another program: signed, in order, tried again until they are taken."""

import asyncio
import itertools
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from typing import Any

from outlast import Agent, Outlast, Webhook, WebhookSettings
from outlast.errors import InvalidSignature
from outlast.integration.outbox import verify
from outlast.testing import ScriptedModel, say

SECRET = os.environ.get("HOOK_SECRET", "for an example only")  # openssl rand -base64 32
received: Queue[dict[str, Any]] = Queue()
tries = itertools.count(1)


class Receiver(BaseHTTPRequestHandler):
    """Somebody else's server, in any language: here it fails at first."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(503 if next(tries) == 1 else self.take(body))
        self.end_headers()

    def take(self, body: bytes) -> int:
        try:
            received.put(verify(SECRET, dict(self.headers), body))
        except InvalidSignature as error:
            print(error)
            return 401
        return 204  # anything else than 2xx is tried again

    def log_message(self, *_: object) -> None: ...


poet = Agent("poet", ScriptedModel([say("Roses are red."), say("Violets are blue.")]))
settings = WebhookSettings(secret=SECRET, allow_private=True)  # the receiver is on this machine
app = Outlast([poet], store="sqlite:///webhooks.db", webhooks=settings)


async def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with app:
        url = f"http://127.0.0.1:{server.server_port}/hook"
        session = await app.start(poet, "A line, please", webhook=Webhook(url))
        await session.send("Another one")
        for _ in range(2):
            hook = await asyncio.to_thread(received.get)
            print(hook["event"]["offset"], hook["event"]["type"], hook["output"])
    server.shutdown()
    server.server_close()


asyncio.run(main())
