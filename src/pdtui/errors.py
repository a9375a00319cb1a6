"""Every error that pdtui raises on purpose, as one tree.

    PdtuiError
      UsageError                  the command line or a target is wrong (exit 2)
      FileError                   a file cannot be read or is no valid topology (exit 2)
      ThemeError                  a theme file is not usable
      RemoteError                 a node
        ConnectError              no connection; `kind` says why
          JumpHostError           none to the host that leads to the node
        AgentError                the agent answered with an error
        AgentLost                 the connection ended while a request was out
      ActionRefused               the supervisor says no; `kind` says why
      ProxyError                  the proxy could not answer a request; its kinds are in `proxy.errors`
      SimulationError             the simulated cluster could not be set up

Each carries `remedy`: what the operator can do about it, or an empty string.
"""

from __future__ import annotations

from typing import Literal

ConnectKind = Literal[
    "unknown_host_key",
    "changed_host_key",
    "auth",
    "refused",
    "timeout",
    "unreachable",
    "forbidden",
    "dns",
    "no_python",
    "no_container",
    "protocol",
    "lost",
]

RefusalKind = Literal["read_only", "protected", "unknown_target", "blocked", "conflict", "leased", "unmanaged"]


class PdtuiError(Exception):
    """Base of all errors that pdtui raises on purpose."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n{self.remedy}" if self.remedy else self.message


class UsageError(PdtuiError):
    """The command line, or a target in it, is wrong."""


class FileError(PdtuiError):
    """A file cannot be read, or is no valid topology."""


class ThemeError(PdtuiError):
    """A theme file is not usable."""


class RemoteError(PdtuiError):
    """Something went wrong on the way to a node, or there."""


class ConnectError(RemoteError):
    """A node cannot be reached; `kind` is the reason in one word."""

    def __init__(self, message: str, *, kind: ConnectKind, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.kind: ConnectKind = kind


class JumpHostError(ConnectError):
    """The host through which a node is reached cannot be reached itself."""


class AgentError(RemoteError):
    """The agent answered a request with an error; `code` is its word for it."""

    def __init__(self, message: str, *, code: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class AgentLost(RemoteError):
    """The connection to a node ended while a request was out."""


class ActionRefused(PdtuiError):
    """The supervisor does not do what was asked; `kind` is the reason in one word."""

    def __init__(self, message: str, *, kind: RefusalKind, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.kind: RefusalKind = kind


class ProxyError(PdtuiError):
    """The proxy could not answer a request; `status` is the HTTP status that the client gets."""

    def __init__(self, message: str, *, status: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


class SimulationError(PdtuiError):
    """The simulated cluster could not be set up."""
