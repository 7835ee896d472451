"""Spans and metrics of workers, through the API package of OpenTelemetry alone.

`TracedExecutor` wraps an agent's executor and `TracedStore` the store of a worker. The engine knows
nothing of them, and without an SDK they cost next to nothing.
"""

from typing import Any

from msgspec import Struct

from outlast.integration.telemetry.trace import TurnIds

__all__ = ["Telemetry", "TurnIds"]


class Telemetry(Struct, frozen=True, kw_only=True):
    """Settings of traces and metrics. `content` adds prompts, answers, arguments and results.

    `sample` is the share of turns that are traced; all workers choose the same ones. Without
    providers, OpenTelemetry's global ones are used.
    """

    content: bool = False
    sample: float = 1.0
    tracer_provider: Any = None
    meter_provider: Any = None
