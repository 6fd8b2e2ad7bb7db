"""The server of the demo answers pages of this machine alone, and refuses very large requests."""

import asyncio

import pytest

from blackout.cli import demo_server
from blackout.cli.demo_page import DemoModel
from blackout.cli.demo_server import MAX_BODY_BYTES, LocalRequests
from blackout.errors import UserError

PORT = 7860
OWN = {"host": f"127.0.0.1:{PORT}"}


async def application(scope, receive, send):
    """Answers with the number of bytes of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(headers, parts=(b"",), kind="http"):
    """Status and body of the answer; a part that is None never comes."""
    sent = []

    waiting = list(parts)

    async def receive():
        if waiting[0] is None:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(LocalRequests(application, PORT)(scope, receive, send))
    return sent[0].get("status"), sent[-1].get("body")


@pytest.mark.parametrize(
    "headers",
    [
        OWN,
        {"host": "localhost"},
        {**OWN, "origin": f"http://localhost:{PORT}"},
        {**OWN, "content-length": "6"},
    ],
)
def test_requests_of_its_own_page_are_answered(headers):
    assert ask(headers, (b"abc", b"def")) == (200, b"6")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "[::1]"}, 403),
        ({**OWN, "origin": "http://evil.example"}, 403),
        ({**OWN, "origin": "null"}, 403),
        ({**OWN, "origin": "http://127.0.0.1:1"}, 403),
        ({**OWN, "content-length": str(10**12)}, 413),
        ({**OWN, "content-length": "-1"}, 413),
        ({**OWN, "content-length": "9" * 5000}, 413),
    ],
)
def test_requests_of_other_pages_are_refused(headers, status):
    assert ask(headers) == (status, b"")


def test_bodies_are_limited_in_size_and_time(monkeypatch):
    monkeypatch.setattr(demo_server, "SILENT_SECONDS", 0.05)
    assert ask(OWN, (b"x" * MAX_BODY_BYTES, b"x")) == (413, b"")
    assert ask(OWN, (b"x", None)) == (408, b"")
    assert ask({"host": "evil.example"}, kind="websocket") == (None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": 1.5},
        {"number": 0},
        {"number": 10**9},
        {"number": True},
        {"number": "4"},
        {"seed": -1},
        {"seed": 0.5},
        {"seed": 2**63},
        {"steps": 2.5},
        {"steps": 0},
        {"steps": 10**6},
        {"guidance": float("nan")},
        {"guidance": 10**400},
        {"guidance": "2"},
        {"temperature": 0},
        {"temperature": float("nan")},
        {"temperature": 1.5},
        {"label": "nothing"},
    ],
)
def test_wrong_numbers_are_an_error_of_the_user(wrong, monkeypatch):
    monkeypatch.setattr(DemoModel, "__init__", lambda self: None)
    monkeypatch.setattr(DemoModel, "classes", ["zero"])
    model = DemoModel()
    model.steps, model._steps_section = 4, "sampler"
    with pytest.raises(UserError, match=r"must be|not a class"):
        model.sample_frames(**wrong)
