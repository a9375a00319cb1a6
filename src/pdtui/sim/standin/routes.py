"""What an API server answers at which path, the two completion endpoints aside."""

import time
import uuid
from typing import Any

from . import cpu, words
from .asked import Refusal, check_model, error, missing, read_body
from .completions import Completions
from .config import Config
from .metrics import Metrics
from .server import Reply, Request, as_json

ROUTES = (
    ("/openapi.json", "GET, HEAD"), ("/docs", "GET, HEAD"), ("/redoc", "GET, HEAD"), ("/health", "GET"),
    ("/load", "GET"), ("/ping", "POST"), ("/ping", "GET"), ("/tokenize", "POST"), ("/detokenize", "POST"),
    ("/v1/models", "GET"), ("/version", "GET"), ("/v1/responses", "POST"), ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"), ("/metrics", "GET"),
)  # fmt: skip


class Routes:
    """The endpoints of one API server."""

    def __init__(self, config: Config, metrics: Metrics, completions: Completions) -> None:
        self.config = config
        self.metrics = metrics
        self.completions = completions

    def handle(self, request: Request) -> Reply:
        """Answer a request."""
        began = time.monotonic()
        reply = self._route(request)
        handler = request.path if self._allowed(request.path) and reply.status != 405 else "none"
        sizes = (len(request.body), len(reply.body))
        self.metrics.http(handler, request.method, reply.status, sizes, time.monotonic() - began)
        return reply

    def _allowed(self, path: str) -> str:
        """Return the methods of a path, empty for an unknown one."""
        routes = cpu.ROUTES if self.config.cpu else ROUTES
        return ", ".join(methods for route, methods in routes if route == path)

    def _route(self, request: Request) -> Reply:
        config = self.config
        path, method = request.path, request.method
        allowed = self._allowed(path)
        if not allowed:
            return as_json({"detail": "Not Found"}, 404)
        if method not in allowed.split(", "):
            return as_json({"detail": "Method Not Allowed"}, 405, allow=allowed)
        if (
            config.api_key
            and path.startswith("/v1")
            and request.headers.get("authorization") != f"Bearer {config.api_key}"
        ):
            return as_json({"error": "Unauthorized"}, 401)
        if path in ("/health", "/ping"):
            return Reply(503 if self.completions.dead.is_set() else 200, kind="")
        if path == "/metrics":
            version = "1.0.0" if config.cpu else "0.0.4"
            return Reply(body=self.metrics.text().encode(), kind=f"text/plain; version={version}; charset=utf-8")
        if path in ("/v1/completions", "/v1/chat/completions"):
            return self.completions.handle(request, chat=path.endswith("chat/completions"))
        if path in ("/tokenize", "/detokenize"):
            return self._tokenize(request)
        if path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
            return Reply(body=b"<!DOCTYPE html>\n<title>FastAPI</title>\n", kind="text/html; charset=utf-8")
        values: dict[str, Any] = {
            "/version": {"version": config.version},
            "/load": {"server_load": 0},
            "/v1/models": {"object": "list", "data": [self._model(name) for name in config.served]},
            "/kv_event_sources": {},
            "/openapi.json": {"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}, "paths": {}},
        }
        if path in values:
            return as_json(values[path])
        return error(501, "NotImplementedError", f"{path} is not simulated.")

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": self.config.model,
            "parent": None,
            "max_model_len": self.config.max_model_len,
            "permission": [
                {
                    "id": f"modelperm-{uuid.uuid4().hex[:16]}",
                    "object": "model_permission",
                    "created": int(time.time()),
                    "allow_create_engine": False,
                    "allow_sampling": True,
                    "allow_logprobs": True,
                    "allow_search_indices": False,
                    "allow_view": True,
                    "allow_fine_tuning": False,
                    "organization": "*",
                    "group": None,
                    "is_blocking": False,
                }
            ],
        }

    def _tokenize(self, request: Request) -> Reply:
        try:
            body = read_body(request)
            check_model(body, self.config.served)
            if request.path == "/detokenize":
                if "tokens" not in body:
                    raise missing(body, "tokens")
                return as_json({"prompt": " ".join(map(str, body["tokens"]))})
            if "prompt" not in body and "messages" not in body:
                raise missing(body, "prompt", "messages")
            text = words.chat_text(body["messages"]) if "messages" in body else str(body["prompt"])
        except Refusal as refusal:
            return refusal.reply
        except (KeyError, TypeError, AttributeError) as problem:
            return error(400, "BadRequestError", str(problem))
        count = words.count(text)
        pieces = words.split(text) if body.get("return_token_strs") else None
        return as_json(
            {
                "count": count,
                "max_model_len": self.config.max_model_len,
                "tokens": list(range(count)),
                "token_strs": pieces,
            }
        )
