"""`outlast keys`: the keys to the server."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    StoreOfApp,
    StoreUrl,
    open_place_or_app,
)
from outlast.cli.terminal.output import error_out, json_out, moment, out, table
from outlast.cli.terminal.run import command
from outlast.core.instant import date_of, date_or_none
from outlast.errors import UnknownKey
from outlast.server import key as server_key
from outlast.server.key import KeyInfo, mint, parse
from outlast.server.principal import SCOPES

HEADERS = ("KEY", "TENANT", "NAME", "SCOPES", "CREATED", "REVOKED")


@command
async def create_key(
    scopes: Annotated[
        list[str], typer.Option(metavar="SCOPES", help=f"What it opens: {', '.join(SCOPES)}.")
    ],
    tenant: Annotated[str, typer.Option(help="Whose sessions it reaches.")] = "default",
    name: Annotated[str, typer.Option(help="Who has it: written down with what they do.")] = "",
    app: StoreOfApp = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is printed this once: only a digest of it is kept.

    It opens what is served from the same store: --app says which that is as `serve` does.

    Example: outlast keys create --tenant acme --scopes read,send
    """
    given = [part.strip() for value in scopes for part in value.split(",") if part.strip()]
    async with open_place_or_app(store, app) as place:
        text, info = mint(place.clock, tenant=tenant, name=name, scopes=given)
        await server_key.add_key(place.store, info)
    if as_json:
        json_out({"key": text, **plain(info)})
    else:
        out(text)
        error_out(f"{info.key_id} opens {', '.join(info.scopes)} of tenant {info.tenant};")
        error_out("keep it now: it is not shown again")


@command
async def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    app: StoreOfApp = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List keys, oldest first, the revoked ones too.

    Example: outlast keys list --tenant acme
    """
    async with open_place_or_app(store, app) as place:
        found = await server_key.list_keys(place.store, tenant)
    if as_json:
        json_out([plain(info) for info in found])
    elif found:
        table(HEADERS, [row(info) for info in found])
    else:
        out("no keys")


@command
async def revoke_key(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, or the key itself.")],
    app: StoreOfApp = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Revoke a key for good. No request gets in with it any more; streams end at their next
    heartbeat.

    Example: outlast keys revoke key_01J9ZK…
    """
    parsed = parse(key)
    key_id = parsed[0] if parsed else key
    async with open_place_or_app(store, app) as place:
        if not await server_key.revoke_key(place.store, key_id, place.clock.now()):
            raise UnknownKey(f"there is no key {key_id}", key=key_id)
    if as_json:
        json_out({"key_id": key_id, "revoked": True})
    else:
        out(f"revoked {key_id}")


def plain(info: KeyInfo) -> dict[str, Any]:
    """Return what may be told of a key."""
    return {
        "key_id": info.key_id,
        "tenant": info.tenant,
        "name": info.name,
        "scopes": info.scopes,
        "created_at": date_of(info.created_at),
        "revoked_at": date_or_none(info.revoked_at),
    }


def row(info: KeyInfo) -> tuple[str, ...]:
    return (
        info.key_id,
        info.tenant,
        info.name or "-",
        ",".join(info.scopes),
        moment(info.created_at),
        moment(info.revoked_at) if info.revoked_at else "-",
    )


COMMANDS: dict[str, Callable[..., None]] = {
    "create": create_key,
    "list": list_keys,
    "revoke": revoke_key,
}
