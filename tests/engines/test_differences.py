"""The comparison itself: what it overlooks nobody will see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines import differences, normal
from tests.engines.differences import ABSENT, Departure, Difference, departures, unexplained
from tests.engines.outline import outline


def test_departures_are_found_key_by_key() -> None:
    real = {"status": 200, "body": {"id": "x", "choices": [1, 2]}, "gone": True}
    found = {"status": 200, "body": {"id": "y", "choices": [1, 2], "more": 3}}
    assert list(departures("fact", real, found)) == [
        Departure("fact", "body/id", "x", "y"),
        Departure("fact", "body/more", ABSENT, 3),
        Departure("fact", "gone", True, ABSENT),
    ]
    assert list(departures("fact", [1, 2], [2, 1])) == [Departure("fact", "", [1, 2], [2, 1])]
    assert list(departures("fact", real, None)) == [Departure("fact", "", real, None)]


def test_a_reason_holds_for_one_house_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    known = (Difference("standin", "http: docs*", "body/*", "a page for people"),)
    monkeypatch.setattr(differences, "DIFFERENCES", known)
    page = Departure("http: docs, new", "body/title", "a", "b")
    others = [Departure("http: docs", "status", 200, 404), Departure("http: health", "body/x", 1, 2)]
    assert unexplained("standin", [page, *others]) == others
    assert unexplained("ascend", [page]) == [page]


def _answer(body: str, *, counted: tuple[str, ...] = (), mixed: bool = False) -> dict[str, object]:
    return {"status": 200, "headers": [["Content-Type", "x"]], "body": body, "counted": counted, "mixed": mixed}


def test_what_is_chance_is_no_difference_and_everything_else_is() -> None:
    one = '{"id":"cmpl-0123456789abcdef","created":7,"choices":[{"text":"a"}]}'
    other = '{"id":"cmpl-fedcba9876543210","created":8,"choices":[{"text":"b"}]}'
    assert normal.answer(_answer(one)) == normal.answer(_answer(other))
    for worse in (
        one.replace("cmpl-", "chat-"),
        one.replace("text", "words"),
        one.replace('"created":7,', ""),
        one[:-2],
    ):
        assert normal.answer(_answer(one)) != normal.answer(_answer(worse)), worse


def test_a_stream_is_compared_event_by_event() -> None:
    text = 'data: {"choices":[{"text":"a"}]}\n\n'
    whole = normal.answer(_answer(f"{text}{text}data: [DONE]\n\n"))
    assert whole["body"] == ['data: {"choices":[{"text":"<text>"}]}', "data: [DONE]"]
    for worse in (
        f"{text}data: [DONE]\n",
        text,
        f"{text}: keepalive\n\ndata: [DONE]\n\n",
        f"data: [DONE]\n\n{text}",
    ):
        assert normal.answer(_answer(worse)) != whole, worse


def test_an_outline_keeps_what_clients_rely_on() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "details": None}
    choice = {"text": "<text>", "finish_reason": "length", "logprobs": None}
    body = {"id": "cmpl-<id>", "object": "text_completion", "choices": [choice], "usage": usage}
    fact: dict[str, Any] = {
        "status": 200,
        "headers": ["content-type: application/json", "vary: Origin"],
        "body": body,
    }
    newer = {**fact, "headers": fact["headers"][:1], "body": {**body, "metrics": None}}
    assert outline(fact) == outline(newer)
    assert outline(fact) != outline({**fact, "body": {**body, "choices": [{**choice, "finish_reason": "stop"}]}})
    assert outline(fact) != outline({**fact, "status": 404})


def test_a_stream_whose_tokens_came_with_the_last_event_is_the_same_and_nothing_else() -> None:
    first, text, last = (
        'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
        'data: {"choices":[{"delta":{"content":"<text>"},"finish_reason":null}]}',
        'data: {"choices":[{"delta":{"content":"<text>"},"finish_reason":"length"}]}',
    )
    real = [first, text, last, "data: [DONE]"]
    assert not list(departures("fact", real, [first, last, "data: [DONE]"]))
    for worse in ([text, last, "data: [DONE]"], [first, text, "data: [DONE]"], [first, text, last], [first, last]):
        assert list(departures("fact", real, worse)), worse
