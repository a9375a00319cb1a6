"""A test completion: prompt, streamed answer, and what each leg took."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input

from pdtui.console.actions import bindings, restarted_with_failed
from pdtui.console.look import Look
from pdtui.console.rows import BLANK, Row, paragraphs
from pdtui.console.strings import S, ranks_of
from pdtui.console.timing import latency
from pdtui.console.widgets.field import field
from pdtui.console.widgets.line_view import Bar
from pdtui.console.widgets.text_view import TextView
from pdtui.errors import PdtuiError
from pdtui.fleet.handle import FleetHandle
from pdtui.fleet.snapshot import RankState, Snapshot
from pdtui.proxy.interface import Ask, AskProgress
from pdtui.text import clean, clean_line


class TestPane(Vertical):
    """Sends prompts through the embedded proxy, one at a time."""

    __test__ = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("test"),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
    ]

    class Left(Message):
        """The operator is done."""

    class Changed(Message):
        """A completion begins or has ended: the keys mean something else."""

    def __init__(self, look: Look, handle: FleetHandle, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._handle = handle
        self._look = look
        self._prompt = ""
        self._progress: AskProgress | None = None
        self.asking = False

    def compose(self) -> ComposeResult:
        """Prompt above, answer below."""
        with Horizontal(id="test-line"):
            yield Bar(self._look, id="test-sign")
            yield field("test-prompt", S.test_hint)
        yield TextView(self._look, id="test-answer")

    def on_mount(self) -> None:
        """Show the sign before the prompt."""
        bar = self.query_one("#test-sign", Bar)
        bar.show(bar.line().add(f" {S.test_prompt}", self._look.styles.key))

    def set_look(self, look: Look) -> None:
        """Change theme or signs."""
        self._look = look
        for view in self.query(Bar).results(Bar):
            view.set_look(look)
        self.query_one(TextView).set_look(look)

    def take_focus(self) -> None:
        """Put the cursor into the prompt."""
        self.query_one(Input).focus()

    @on(Input.Submitted, "#test-prompt")
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.send()

    def send(self) -> None:
        """Ask what is typed; an empty prompt asks nothing."""
        field_ = self.query_one(Input)
        prompt = field_.value.strip()
        if prompt:
            field_.clear()
            self._ask(prompt)

    @work(group="ask", exclusive=True, exit_on_error=False)
    async def _ask(self, prompt: str) -> None:
        self._prompt, self._progress = prompt, None
        self._set_asking(True)
        self._show()
        try:
            self._arrived(await self._handle.ask(Ask(prompt=prompt), self._arrived))
        except PdtuiError as error:
            self._arrived(AskProgress(text=self._text(), done=True, error=str(error)))
        except asyncio.CancelledError:
            self._arrived(AskProgress(text=self._text(), done=True, finish_reason=S.test_cancelled))
            raise
        finally:
            self._set_asking(False)

    def _set_asking(self, asking: bool) -> None:
        self.asking = asking
        if self.is_attached:
            self.query_one(Input).placeholder = S.test_answering if asking else S.test_hint
            self.post_message(self.Changed())

    def _text(self) -> str:
        return self._progress.text if self._progress is not None else ""

    def _arrived(self, progress: AskProgress) -> None:
        self._progress = progress
        if self.is_attached:
            self._show()

    def leave(self) -> None:
        """Cancel what is asked; with nothing asked, leave."""
        if self.asking:
            self.workers.cancel_group(self, "ask")
        else:
            self.post_message(self.Left())

    def action_scroll(self, by: int) -> None:
        """Scroll the answer."""
        view = self.query_one(TextView)
        view.go_to(view.top + by)

    def _show(self) -> None:
        view = self.query_one(TextView)
        rows = answer_rows(self._prompt, self._progress, view.size.width - 2)
        if self._progress is not None and self._progress.error:
            rows += what_helps(self._handle.snapshot, moe=self._handle.topology.model.kind == "moe")
        view.show(rows)
        view.go_to(view.row_count)


def answer_rows(prompt: str, progress: AskProgress | None, width: int) -> list[Row]:
    """Return a completion so far; what each leg took is on as few lines of `width` cells as hold it."""
    rows = [Row(clean_line(prompt), "title_focused", S.test_prompt, "key", label_width=2), BLANK]
    if progress is None:
        return [*rows, Row(S.test_waiting, "dim")]
    said = paragraphs(progress.text) or ([] if progress.done else [Row(S.test_waiting, "dim")])
    rows += [*said, BLANK] if said else []
    if progress.error:
        rows += paragraphs(S.test_failed.format(error=progress.error), "failed")
    where = " -> ".join(rank for rank in (progress.prefill, progress.decode) if rank)
    parts = [where] if where else []
    for text, value in (
        (S.test_queue, progress.queue_s),
        (S.test_prefill, progress.prefill_s),
        (S.test_transfer, progress.transfer_s),
        (S.test_first, progress.ttft_s),
    ):
        if value is not None:
            parts.append(text.format(t=latency(value)))
    if progress.tokens_per_s is not None:
        parts.append(S.tokens_per_s.format(n=f"{progress.tokens_per_s:.1f}"))
    if progress.tokens is not None:
        parts.append(S.test_tokens.format(n=progress.tokens))
    if progress.status is not None and (progress.error or progress.status != 200):
        parts.append(S.test_status.format(n=progress.status))
    if progress.finish_reason:
        parts.append(clean(progress.finish_reason))
    return rows + [Row(line, "dim" if progress.done else "starting") for line in _packed(parts, width)]


def what_helps(snapshot: Snapshot, *, moe: bool) -> list[Row]:
    """Return what the operator can do about an answer that did not come, judged from the ranks."""
    found = Counter(rank.state for rank in snapshot.ranks)
    texts = (
        (S.test_helps_failed, restarted_with_failed(snapshot, moe=moe)),
        (S.test_helps_stopped, found[RankState.STOPPED]),
        (S.test_helps_starting, found[RankState.STARTING]),
    )
    rows = [Row(text.format(ranks=ranks_of(n)), "key_label", S.remedy, label_width=12) for text, n in texts if n]
    return [BLANK, *rows] if rows else []


def _packed(parts: list[str], width: int) -> list[str]:
    """Return the parts on lines, none broken that fits."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f"   {part}"
        else:
            lines.append(part)
    return lines
