"""Signatures: what is signed can be verified, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from outlast.agents.subscription import DEFAULT_EVENTS, EVENTS
from outlast.errors import InvalidDefinition, InvalidSignature
from outlast.integration.outbox import Subscription, WebhookSettings, sign, verify
from outlast.testing.clock import ManualClock

SECRET = "correct horse battery"
OTHER = "staple of another sort"
BODY = b'{"id":"ses_1-7"}'
AT = 1_700_000_000


def at(seconds: int = AT) -> ManualClock:
    return ManualClock(seconds * 1000)


def check(headers: dict[str, str], body: bytes | str = BODY, **options: Any) -> dict[str, Any]:
    return verify(options.pop("secret", SECRET), headers, body, clock=at(), **options)


def test_what_was_signed_is_verified_and_returned() -> None:
    headers = sign(SECRET, BODY, AT, "ses_1-7")
    assert check(headers) == {"id": "ses_1-7"}
    assert check(headers, BODY.decode()) == {"id": "ses_1-7"}
    assert check({name.title(): value for name, value in headers.items()}) == {"id": "ses_1-7"}


def test_a_signature_is_that_of_standard_webhooks() -> None:
    # The example of the specification's reference libraries.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    headers = sign(secret, b'{"test": 2432232314}', 1614265330, "msg_p5jXN8AQM9LWM0D4loKWxJek")
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_plain_secret_is_used_as_it_is_written() -> None:
    signed = hmac.new(SECRET.encode(), b"m.5." + BODY, hashlib.sha256).digest()
    headers = sign(SECRET, BODY, 5, "m")
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_or_empty_is_named(name: str) -> None:
    headers = sign(SECRET, BODY, AT, "m")
    for changed in ({**headers, name: ""}, {k: v for k, v in headers.items() if k != name}):
        with pytest.raises(InvalidSignature, match=f"{name} is missing"):
            check(changed)


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "n"},
        {"webhook-id": "\udcff"},
        {"webhook-timestamp": str(AT + 1)},
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,\udcff"},
        {"webhook-signature": " , ,,"},
    ],
)
def test_what_was_changed_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(InvalidSignature):
        check({**sign(SECRET, BODY, AT, "m"), **change})


def test_another_body_another_secret_and_another_version_are_refused() -> None:
    headers = sign(SECRET, BODY, AT, "m")
    with pytest.raises(InvalidSignature, match="no signature fits"):
        check(headers, BODY + b" ")
    with pytest.raises(InvalidSignature, match="no signature fits"):
        check(headers, secret=OTHER)
    older = headers["webhook-signature"].replace("v1,", "v0,")
    with pytest.raises(InvalidSignature, match="no signature fits"):
        check({**headers, "webhook-signature": older})


@pytest.mark.parametrize("secret", [SECRET, OTHER])
def test_a_sender_that_changes_its_secret_is_understood_by_receivers_with_either(
    secret: str,
) -> None:
    headers = sign((OTHER, SECRET), BODY, AT, "m")
    assert len(headers["webhook-signature"].split(" ")) == 2
    assert check(headers, secret=secret)


@pytest.mark.parametrize("secret", [SECRET, OTHER])
def test_a_receiver_that_changes_its_secret_understands_senders_with_either(secret: str) -> None:
    assert check(sign(secret, BODY, AT, "m"), secret=[OTHER, SECRET])


@pytest.mark.parametrize(("age", "fits"), [(0, True), (300, True), (301, False), (-301, False)])
def test_what_was_signed_long_ago_or_in_the_future_is_refused(age: int, fits: bool) -> None:
    headers = sign(SECRET, BODY, AT - age, "m")
    if fits:
        assert check(headers)
        return
    with pytest.raises(InvalidSignature, match="301 s"):
        check(headers)


@pytest.mark.parametrize("timestamp", ["1e3", "-5", "٣", "9" * 5000, "x", "1.5"])
def test_a_timestamp_that_is_no_number_is_refused(timestamp: str) -> None:
    with pytest.raises(InvalidSignature, match="not a number"):
        check({**sign(SECRET, BODY, AT, "m"), "webhook-timestamp": timestamp})


def test_a_body_that_is_no_object_is_refused() -> None:
    for body in (b"[]", b"{", b"\xff"):
        with pytest.raises(InvalidSignature, match="not a JSON object"):
            check(sign(SECRET, body, AT, "m"), body)


@pytest.mark.parametrize("secret", ["", (), "short", "whsec_not base64!", "whsec_c2hvcnQ="])
def test_a_secret_that_cannot_be_used_is_refused_and_not_shown(secret: Any) -> None:
    for use in (
        lambda: sign(secret, BODY, AT, "m"),
        lambda: check(sign(SECRET, BODY, AT, "m"), secret=secret),
    ):
        with pytest.raises(InvalidDefinition) as found:
            use()
        assert "short" not in str(found.value)
        assert "c2hvcnQ" not in str(found.value)


def test_neither_settings_nor_subscriptions_show_their_secret() -> None:
    shown = (
        WebhookSettings(secret=SECRET),
        Subscription("https://shop.example/s3cret?x=s3cret", secret=SECRET),
    )
    for each in shown:
        for text in (repr(each), str(each), f"{[each]}"):
            assert SECRET not in text
            assert "s3cret" not in text


def test_the_default_events_exist() -> None:
    assert set(DEFAULT_EVENTS) <= EVENTS


@pytest.mark.parametrize(
    "options",
    [
        {"events": ["turn.completed", "turn.finished"]},
        {"events": ["model.started"]},
        {"events": []},
        {"events": "turn.complete"},
        {"secret": "short"},
        {"name": ""},
        {"name": "a b"},
    ],
)
def test_a_subscription_that_cannot_work_is_refused_where_it_is_written(
    options: dict[str, Any],
) -> None:
    with pytest.raises(InvalidDefinition):
        Subscription("https://shop.example/", **options)


@pytest.mark.parametrize("option", ["timeout", "at_once", "at_once_per_receiver", "poll"])
def test_settings_that_would_send_nothing_are_refused(option: str) -> None:
    with pytest.raises(InvalidDefinition, match=option):
        WebhookSettings(secret=SECRET, **{option: 0})  # type: ignore[arg-type]
