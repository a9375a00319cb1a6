"""What can go wrong on the way of a request; the HTTP layer turns each into an OpenAI error."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.errors import ProxyError


class BadRequest(ProxyError):
    """The client's request is no request."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message, status=status)


class NoBackend(ProxyError):
    """No rank of a role can take the request now; `retry_after` in seconds."""

    def __init__(self, message: str, *, retry_after: int, remedy: str = "") -> None:
        super().__init__(message, status=503, remedy=remedy)
        self.retry_after = retry_after


class UpstreamError(ProxyError):
    """A rank failed; `started` says whether any byte of the request may have reached it."""

    def __init__(self, message: str, *, started: bool, status: int = 502) -> None:
        super().__init__(message, status=status)
        self.started = started


class NotConnected(UpstreamError):
    """No connection to the rank: it has not seen the request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, started=False)


class TooLate(UpstreamError):
    """A rank did not take the request before a moment after which it must not have it: no byte of it was sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, started=False, status=504)


class UpstreamLost(UpstreamError):
    """The rank broke off, or answered with something that cannot be used."""

    def __init__(self, message: str) -> None:
        super().__init__(message, started=True)


class UpstreamTimeout(UpstreamError):
    """The rank took too long."""

    def __init__(self, message: str) -> None:
        super().__init__(message, started=True, status=504)


class HandoverMissing(ProxyError):
    """P answered, but gave nothing that a decoder could fetch."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, status=502, remedy=remedy)


class CannotResume(ProxyError):
    """D dropped a running answer (recompute), and this kind of request cannot be taken up again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=502)


class ClientGone(ProxyError):
    """The client has left; nobody is told."""

    def __init__(self) -> None:
        super().__init__("the client has left", status=499)


class Refused(ProxyError):
    """A rank said no to the request itself (4xx): passed on as it is, never tried again."""

    def __init__(self, message: str, *, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(message, status=status)
        self.body = body
        self.headers = headers
