"""The response to a channel's sender."""

from pydantic import Field

from outlast.server.model.shape import DELIVERY, SESSION, Out, example


class ReceivedOut(Out):
    """Whether it was for a session, and then for which."""

    model_config = example(
        {
            "accepted": True,
            "session_id": SESSION,
            "delivery_id": DELIVERY,
            "duplicate": False,
        }
    )

    accepted: bool = Field(description="False: there was nothing in it for an agent.")
    session_id: str | None = None
    delivery_id: str | None = None
    duplicate: bool | None = Field(default=None, description="Whether it had come before.")
