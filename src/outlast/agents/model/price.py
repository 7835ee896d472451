"""Prices of model calls: the list of `genai-prices`, or the agent's own.

Owns how a price is found, once, when the answer comes: it goes into the log with the usage and with
the version of the list, and is never computed again. A price that nobody knows is no zero: the call
is recorded as one without a price, or refused before it is made. Refuses to fetch newer lists by
itself; an app that wants them starts `genai_prices.UpdatePrices`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from outlast.agents.model.client import FinishedAnswer, ModelClient
from outlast.core.record import Failure
from outlast.core.result import CallPrice, Usage, bounded
from outlast.core.setting import group_of, one_of
from outlast.errors import InvalidDefinition
from outlast.log_context import get_logger

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

log = get_logger("outlast.agents")

OnUnknownPrice = Literal["record", "refuse"]
Amount = Decimal | float | str

GATEWAY = "pydantic-ai-gateway"


class ModelPrice(Struct, frozen=True, kw_only=True):
    """The price of a million tokens of a model, in US dollars.

    `input` is the price of tokens that come from no cache; without `cache_read` and `cache_write`,
    cached tokens cost the same.
    """

    input: Amount
    output: Amount
    cache_read: Amount | None = None
    cache_write: Amount | None = None


class Prices(Struct, frozen=True, kw_only=True):
    """The prices of an agent's models.

    Attributes:
        known: Prices by the model's name, as the agent or the provider gives it. They take
            precedence over `genai-prices`.
        version: Recorded with these prices.
        unknown: A call of unknown price is made and recorded without one ("record"), or not made
            ("refuse"): then the session goes on with another model or waits.
    """

    known: Mapping[str, ModelPrice] = {}
    unknown: OnUnknownPrice = "record"
    version: str = "own"


NO_OWN_PRICES = Prices()


class ModelPricing:
    """Prices the calls of one of an agent's models."""

    def __init__(self, prices: Prices, model: str, client: ModelClient) -> None:
        self._prices = prices
        self._model = model
        self._client = client
        self._is_known = prices.unknown == "record" or model in prices.known

    async def refusal(self) -> Failure | None:
        """Say why the model may not be called, where that is for want of a price."""
        if self._is_known:
            return None
        is_priced = getattr(self._client, "is_priced", None)
        self._is_known = bool(is_priced and await is_priced())
        if self._is_known:
            return None
        return Failure(
            "PRICE_UNKNOWN",
            f"the price of {self._model} is not known, and calls without one are refused",
            "give it with ModelOptions(prices=Prices(known={…})), or install a newer genai-prices",
        )

    def price_of(self, used: Usage) -> CallPrice | None:
        """Return what so many tokens cost; None if nobody knows, or the model is not loaded yet."""
        if own := self._prices.known.get(self._model):
            return CallPrice(cost_of(used, own), self._prices.version)
        list_price: Callable[[Usage], CallPrice | None] | None
        list_price = getattr(self._client, "list_price", None)
        return list_price(used) if list_price else None

    async def prepare(self) -> None:
        """Have the model loaded, which its price in the list is found by."""
        if self._model not in self._prices.known and (
            ready := getattr(self._client, "ready", None)
        ):
            await ready()

    def price(self, answer: FinishedAnswer) -> CallPrice | None:
        """Return what an answer has cost; None if nobody knows."""
        known = self._prices.known
        own = known.get(self._model) or known.get(answer.model)
        if own:
            return CallPrice(cost_of(answer.usage, own), self._prices.version)
        if answer.price is None:
            return None
        return CallPrice(bounded(answer.price.nano_usd), answer.price.prices)


def cost_of(used: Usage, price: ModelPrice) -> int:
    """Return what tokens cost, in billionths of a dollar."""
    read, written = used.cache_read_tokens, used.cache_write_tokens
    fresh = max(0, used.input_tokens - read - written)
    at = Decimal(str(price.input))
    at_read = at if price.cache_read is None else Decimal(str(price.cache_read))
    at_write = at if price.cache_write is None else Decimal(str(price.cache_write))
    dollars = fresh * at + read * at_read + written * at_write
    return nano((dollars + used.output_tokens * Decimal(str(price.output))) / 1_000_000)


def nano(dollars: Decimal) -> int:
    return bounded(int((dollars * 10**9).to_integral_value()))


def listed_price(response: ModelResponse, asked: str) -> CallPrice | None:
    """Return what an answer has cost, as its provider says or `genai-prices` lists it.

    The model is looked up as the provider names it, then as it was `asked` for.
    """
    told = response.usage.cost
    if told is not None and told.is_finite():
        return CallPrice(nano(told), GATEWAY)
    return _listed(response) or _listed(replace(response, model_name=asked))


def _listed(response: ModelResponse) -> CallPrice | None:
    try:
        found = response.cost()
    except (AssertionError, LookupError, ValueError):  # which model, or how much, nobody knows
        return None
    except Exception:  # prices must never fail a call that was made and paid for
        log.exception("a price could not be computed", extra={"model": response.model_name})
        return None
    newer = found.auto_update_timestamp
    of = f"{list_version()}, updated {newer:%Y-%m-%d %H:%M}" if newer else list_version()
    return CallPrice(nano(found.total_price), of)


@cache
def list_version() -> str:
    return f"genai-prices {version('genai-prices')}"


def is_listed(model: Model) -> bool:
    """Say whether `genai-prices` has a model."""
    return _find_listed(model, Usage()) is not None


def listed_cost(model: Model, used: Usage) -> CallPrice | None:
    """Return what tokens cost by `genai-prices`, if it has the model."""
    found = _find_listed(model, used)
    return CallPrice(found, list_version()) if found else None


def _find_listed(model: Model, used: Usage) -> int | None:
    # Here and not at the top: it takes half a second, and pydantic-ai has imported it by now.
    from genai_prices import Usage as ListedUsage
    from genai_prices import calc_price

    listed = ListedUsage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)
    places: tuple[dict[str, Any], ...] = (
        {"provider_api_url": getattr(model, "base_url", None)},
        {"provider_id": model.system},
    )
    for place in places:
        if not any(place.values()):
            continue
        try:
            found = calc_price(listed, model.model_name, **place)
        except LookupError:
            continue
        except ValueError:
            return 0
        return nano(found.total_price)
    return None


def checked_prices(given: Any) -> Prices:
    """Return prices that are numbers; refuse others."""
    prices: Prices = group_of(Prices, "model_options.prices", given)
    one_of(OnUnknownPrice, "model_options.prices.unknown", prices.unknown)
    if not isinstance(prices.known, Mapping):
        raise InvalidDefinition("prices.known is a mapping of names of models to ModelPrice")
    for model, price in prices.known.items():
        if not isinstance(price, ModelPrice):
            raise InvalidDefinition(f"the price of {model!r} is a ModelPrice, not {price!r}")
        for name in ModelPrice.__struct_fields__:
            check_amount(model, name, getattr(price, name))
    label: Any = prices.version
    if not isinstance(label, str) or not label:
        raise InvalidDefinition("prices.version is a text that names these prices")
    return prices


def check_amount(model: str, name: str, amount: Any) -> None:
    if amount is None and name.startswith("cache_"):
        return
    try:
        value = Decimal(str(amount))
    except InvalidOperation:
        value = Decimal("NaN")
    if isinstance(amount, bool) or not value.is_finite() or not 0 <= value <= 10**6:
        raise InvalidDefinition(
            f"the {name} price of {model!r} is US dollars for a million tokens, not {amount!r}"
        )
