"""What a completion request asks for, and vLLM's refusals of it, in its order and words."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import words
from .config import Config
from .server import Reply, Request, as_json

VOCABULARY = 200_000
"""No model has token ids beyond; the real bound is the model's."""
MOST_LOGPROBS = 20
ROLES = (
    *((f"ChatCompletion{role}MessageParam", "role") for role in ("Developer", "System", "User", "Assistant", "Tool")),
    ("ChatCompletionToolMessageParam", "tool_call_id"), ("ChatCompletionFunctionMessageParam", "name"),
    ("ChatCompletionFunctionMessageParam", "role"), ("CustomChatCompletionMessageParam", "role"),
    ("Message", "author"),
)  # fmt: skip
"""Kinds of messages, and what each of them has to have."""


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply


def error(status: int, kind: str, message: str, param: str | None = None) -> Reply:
    """Return an error in the shape of the OpenAI API."""
    return as_json({"error": error_body(status, kind, message, param)}, status)


def error_body(status: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Return the inner part of an error."""
    return {"message": message, "type": kind, "param": param, "code": status}


def bad(message: str, param: str | None = None, value: Any = None) -> Refusal:
    """Return vLLM's own refusal of a value."""
    if param is not None:
        shown = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
        message += f" ({shown})"
    return Refusal(error(400, "BadRequestError", message, param))


def invalid(*problems: dict[str, Any], words: str = "", more: int = 0) -> Refusal:
    """Return the framework's refusal of a body: problems with type, loc, msg and input; `more` are only counted."""
    lines = [f"  {problem}" for problem in problems] or [f"  {words}"]
    total = len(lines) + more
    count = f"{total} validation error{'s' if total > 1 else ''}"
    lines += [f"  ...and {more} more errors"] if more else []
    param = str(problems[0]["loc"]) if problems else None
    return Refusal(error(400, "Bad Request", "\n".join([f"{count}:", *lines]), param))


def _problem(kind: str, place: str, message: str, value: Any, **more: Any) -> dict[str, Any]:
    if isinstance(value, dict | list):
        value = f"<{type(value).__name__} of {len(value)} items>"
    return {"type": kind, "loc": place, "msg": message, "input": str(value), **more}


def missing(body: Any, *names: str) -> Refusal:
    """Return the refusal of a body without these fields."""
    return invalid(*(_problem("missing", f"body.{name}", "Field required", body) for name in names))


def read_body(request: Request) -> dict[str, Any]:
    """Return a request's JSON object. Raises `Refusal`."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise invalid(words="Unsupported Media Type: Only 'application/json' is allowed")
    if not request.body:
        raise invalid(_problem("missing", "body", "Field required", None))
    try:
        body = json.loads(request.body)
    except json.JSONDecodeError as problem:
        place = f"body.{problem.pos}"
        raise invalid(
            _problem("json_invalid", place, "JSON decode error", {}, ctx={"error": problem.msg})
        ) from None
    except ValueError:
        raise invalid(_problem("json_invalid", "body.0", "JSON decode error", {})) from None
    if not isinstance(body, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise invalid(_problem("model_attributes_type", "body", text, body))
    return body


def check_model(body: dict[str, Any], served: list[str]) -> None:
    """Refuse another model's name. Raises `Refusal`."""
    model = body.get("model")
    if model and model not in served:
        aliases = f"Valid aliases: {', '.join(served)}."
        raise Refusal(error(404, "NotFoundError", f"The model `{model}` does not exist. {aliases}", "model"))


@dataclass(slots=True)
class Asked:
    """What one request asks for."""

    prompts: list[str]
    counts: list[int]
    """Tokens of each prompt."""
    limits: list[int]
    """Most tokens to make for each."""
    least: int
    choices: int
    echo: bool
    logprobs: int | None
    stop: list[str]
    keep_stop: bool
    ignore_end: bool
    stream: bool
    usage: bool
    usage_always: bool
    kv_params: Any
    chat: bool


def read(request: Request, config: Config, *, chat: bool) -> tuple[dict[str, Any], Asked]:
    """Read a request. Raises `Refusal`."""
    body = read_body(request)
    numbers = {name: _integer(body, name) for name in ("max_tokens", "max_completion_tokens", "min_tokens", "n")}
    params = body.get("kv_transfer_params")
    if params is not None and not isinstance(params, dict):
        raise invalid(
            _problem("dict_type", "body.kv_transfer_params", "Input should be a valid dictionary", params)
        )
    raw = _messages(body) if chat else _prompts(body)
    options = body.get("stream_options")
    if options and not body.get("stream"):
        raise bad("Stream options can only be defined when `stream=True`.", "stream_options")
    options = options if isinstance(options, dict) else {}
    logprobs = _logprobs(body, chat=chat)
    if not chat and raw is None:
        raise bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    check_model(body, config.served)
    wants_tools = chat and body.get("tools") and body.get("tool_choice", "auto") == "auto"
    if wants_tools and not config.flags.get("enable-auto-tool-choice"):
        raise bad('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    prompts, counts = _texts(raw, chat=chat)
    wanted = numbers["max_tokens"]
    if chat and numbers["max_completion_tokens"] is not None:
        wanted = numbers["max_completion_tokens"]
    limits = list(_limits(config.max_model_len, wanted, counts, chat=chat, echo=bool(body.get("echo"))))
    least, choices = numbers["min_tokens"] or 0, 1 if numbers["n"] is None else numbers["n"]
    _check_sampling(body, choices, least, limits[0])
    stop = body.get("stop") or []
    return body, Asked(
        prompts, counts, limits, least, choices, bool(body.get("echo")) and not chat, logprobs,
        [stop] if isinstance(stop, str) else list(stop), bool(body.get("include_stop_str_in_output")),
        bool(body.get("ignore_eos")), bool(body.get("stream")), bool(options.get("include_usage")),
        bool(options.get("include_usage") and options.get("continuous_usage_stats")), params, chat,
    )  # fmt: skip


def _integer(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None or isinstance(value, int):
        return None if value is None else int(value)
    try:
        return int(value)
    except (TypeError, ValueError):
        text = "Input should be a valid integer, unable to parse string as an integer"
        raise invalid(_problem("int_parsing", f"body.{name}", text, value)) from None


def _messages(body: dict[str, Any]) -> Any:
    if "messages" not in body:
        raise missing(body, "messages")
    messages = body["messages"]
    if not isinstance(messages, list):
        raise invalid(_problem("list_type", "body.messages", "Input should be a valid list", messages))
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or "role" not in message:
            listed = [
                _problem("missing", f"body.messages.{place}.{kind}.{field}", "Field required", message)
                for kind, field in ROLES
            ]
            raise invalid(*listed, more=1)
    return messages


def _prompts(body: dict[str, Any]) -> Any:
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        return None
    if not isinstance(prompt, str) and not _is_prompts(prompt):
        listed = _problem("list_type", "body.prompt", "Input should be a valid list", prompt)
        text = _problem("string_type", "body.prompt", "Input should be a valid string", prompt)
        raise invalid(listed, listed, text, listed)
    return prompt


def _is_prompts(value: Any) -> bool:
    """Whether a value is a list of texts, of tokens or of lists of tokens."""
    if not isinstance(value, list):
        return False
    return any(all(isinstance(item, kind) for item in value) for kind in (str, int)) or all(
        isinstance(item, list) and all(isinstance(token, int) for token in item) for item in value
    )


def _texts(raw: Any, *, chat: bool) -> tuple[list[str], list[int]]:
    """Return prompts and how long each is. Raises `Refusal`."""
    if chat:
        if not raw:
            raise bad("Cannot apply chat template to an empty conversation. Provide at least one message.")
        text = words.chat_text(raw)
        return [text], [words.count(text)]
    if raw == []:
        raise bad("You must pass at least one prompt")
    several = isinstance(raw, list) and not isinstance(raw[0], int)
    items = list(raw) if several else [raw]
    for item in items:
        for token in item if isinstance(item, list) else ():
            if not isinstance(token, int) or not 0 <= token < VOCABULARY:
                raise bad(f"Token id {token} is out of vocabulary")
    texts = [item if isinstance(item, str) else " ".join(map(str, item)) for item in items]
    return texts, [words.count(item) for item in items]


def _limits(longest: int, wanted: int | None, counts: list[int], *, chat: bool, echo: bool) -> Iterator[int]:
    """Yield how many tokens to make for each prompt; completions know `max_tokens` only. Raises `Refusal`."""
    if wanted is not None and wanted > longest:
        text = f"max_tokens={wanted} cannot be greater than max_model_len={longest}. Please request fewer output tokens."
        raise bad(text, "max_tokens", wanted)
    for count in counts:
        if count > longest:
            raise bad(
                f"This model's maximum context length is {longest} tokens. However, your prompt contains {count} input "
                "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
                "prompt.",
                "input_tokens",
                count,
            )
        default = longest if chat else 16
        limit = min(longest - count, default if wanted is None else wanted)
        if echo and limit == 0:
            limit = 1
        if limit < 1:
            raise bad(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
        yield limit


def _logprobs(body: dict[str, Any], *, chat: bool) -> int | None:
    if chat:
        return int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    wanted = body.get("logprobs")
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        return None
    if wanted < -1:
        raise bad("`logprobs` must be a positive value or -1.", "logprobs", wanted)
    if wanted > MOST_LOGPROBS:
        text = f"Requested sample logprobs of {wanted}, which is greater than max allowed: {MOST_LOGPROBS}"
        raise bad(text, "logprobs", wanted)
    return wanted


def _check_sampling(body: dict[str, Any], choices: int, least: int, limit: int) -> None:
    temperature = body.get("temperature")
    if choices < 1:
        raise bad(f"n must be at least 1, got {choices}.")
    if isinstance(temperature, int | float) and temperature < 0:
        raise bad(
            f"temperature must be non-negative, got {float(temperature)}.", "temperature", float(temperature)
        )
    top_p = body.get("top_p")
    if isinstance(top_p, int | float) and not 0 < top_p <= 1:
        raise bad(f"top_p must be in (0, 1], got {float(top_p)}.", "top_p", float(top_p))
    if least > limit:
        raise bad(f"min_tokens must be less than or equal to max_tokens={limit}, got {least}.")
    if choices > 1 and temperature == 0:
        raise bad(f"n must be 1 when using greedy sampling, got {choices}.")
