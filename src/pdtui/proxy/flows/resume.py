"""Take up an answer that D dropped («recomputed»): prompt and answer so far become the next prompt.

Source: vllm_ascend/core/recompute_scheduler.py ends a running request with stop_reason "recomputed" instead of
preempting it. Requests whose continuation would not be the same answer are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdtui.proxy import openai
from pdtui.proxy.errors import CannotResume

RECOMPUTED = "recomputed"
_DEFAULT_COMPLETION_TOKENS = 16
"""What /v1/completions generates when `max_tokens` is not given (OpenAI API reference)."""
_CONSTRAINED = ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "tools")


def is_recomputed(value: Mapping[str, Any]) -> bool:
    """Whether D dropped the request that this answer or chunk belongs to."""
    return any(choice.get("stop_reason") == RECOMPUTED for choice in openai.choices_of(value))


class Resume:
    """The answer of one request over all its legs."""

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self._chat = path == openai.CHAT
        self._body = body
        self._text = ""
        self._hidden = False
        self._events = 0
        self._prompt_tokens: int | None = None
        self._generated = 0
        self._head: dict[str, Any] = {}
        self.legs = 1

    @property
    def resumed(self) -> bool:
        """Whether more than one decode leg was needed so far."""
        return self.legs > 1

    @property
    def events(self) -> int:
        """How many chunks carried tokens."""
        return self._events

    def note_chunk(self, value: Mapping[str, Any]) -> None:
        """Remember a chunk that goes to the client."""
        if not self._head:
            self._head = {key: value[key] for key in ("id", "created") if key in value}
        choices = openai.choices_of(value)
        self._events += bool(choices)
        for choice in choices:
            self._note_text(choice)

    def _note_text(self, choice: Mapping[str, Any]) -> None:
        text = openai.text_of(choice)
        self._text += text
        part = choice.get("delta") or choice.get("message")
        if isinstance(part, dict):
            self._hidden |= any(value for key, value in part.items() if key not in ("role", "content"))

    def next_body(self, dropped: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's body with the answer so far at the end of its prompt; raises `CannotResume`."""
        for choice in openai.choices_of(dropped):
            self._note_text(choice)
        self._refuse_what_would_differ()
        self.legs += 1
        body = dict(self._body)
        if not self._text:
            return body
        if not self._chat:
            body["prompt"] = body["prompt"] + self._text
            return body
        messages = list(body["messages"])
        if body.get("continue_final_message"):
            messages[-1] = messages[-1] | {"content": messages[-1]["content"] + self._text}
        else:
            messages.append({"role": "assistant", "content": self._text})
        return body | {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}

    def _refuse_what_would_differ(self) -> None:
        body = self._body
        reason = ""
        if body.get("echo") or (body.get("logprobs") and not body.get("stream")):
            reason = "it asked for log probabilities or an echo of the prompt"
        elif any(body.get(key) for key in _CONSTRAINED) or _kind(body.get("response_format")) != "text":
            reason = "its answer is bound to a grammar or to tools"
        elif self._hidden:
            reason = "its answer has parts other than text (reasoning, tool calls)"
        elif self._chat and not _continuable(body):
            reason = "its last message cannot be continued"
        elif not self._chat and not isinstance(body.get("prompt"), str):
            reason = "its prompt is not one text"
        if reason:
            raise CannotResume(
                f"the decoder dropped this request for lack of KV memory, and it cannot resume: {reason}"
            )

    def note_prefill(self, prompt_tokens: int | None) -> None:
        """Take P's count of the prompt: what it grew by is what was generated, whatever a chunk holds."""
        if not self.resumed:
            self._prompt_tokens = prompt_tokens
        elif prompt_tokens is not None and self._prompt_tokens is not None:
            self._generated = max(0, prompt_tokens - self._prompt_tokens)
        else:
            self._generated = self._events

    def budget(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return `body` with what is left of the client's limits."""
        if not self.resumed or not self._generated:
            return body
        body = dict(body)
        if not self._chat and body.get("max_tokens") is None:
            body["max_tokens"] = _DEFAULT_COMPLETION_TOKENS
        for key in ("max_tokens", "max_completion_tokens"):
            if isinstance(body.get(key), int):
                body[key] = max(1, body[key] - self._generated)
        if isinstance(body.get("min_tokens"), int):
            body["min_tokens"] = max(0, body["min_tokens"] - self._generated)
        return body

    def patch_chunk(self, value: dict[str, Any]) -> None:
        """Make a chunk of a later leg one of the same answer."""
        value.update(self._head)
        self._patch_usage(value)

    def patch_whole(self, value: dict[str, Any]) -> None:
        """Make the last leg's answer the whole one."""
        for choice in openai.choices_of(value)[:1]:
            message = choice.get("message")
            if isinstance(message, dict):
                message["content"] = self._text + openai.text_of(choice)
            else:
                choice["text"] = self._text + openai.text_of(choice)
        self._patch_usage(value)

    def _patch_usage(self, value: dict[str, Any]) -> None:
        usage = openai.usage_of(value)
        prompt, completion = openai.count_of(usage, "prompt_tokens"), openai.count_of(usage, "completion_tokens")
        if prompt is None or completion is None:
            return
        usage["prompt_tokens"] = prompt - self._generated
        usage["completion_tokens"] = completion + self._generated


def _kind(response_format: Any) -> Any:
    return response_format.get("type") if isinstance(response_format, dict) else "text"


def _continuable(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return False
    if not body.get("continue_final_message"):
        return True
    return isinstance(messages[-1], dict) and isinstance(messages[-1].get("content"), str)
