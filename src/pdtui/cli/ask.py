"""`pdtui ask`: one completion through the embedded proxy, with its trace."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pdtui.cli.live import narrate, with_fleet
from pdtui.cli.output import print_json
from pdtui.errors import UsageError
from pdtui.fleet.fleet import Fleet
from pdtui.proxy.interface import Ask, AskProgress


@click.command("ask")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--temperature", type=click.FloatRange(min=0), default=None)
@click.option("--no-stream", is_flag=True, help="Ask for the whole answer at once.")
@click.option("--completion", is_flag=True, help="/v1/completions in place of chat.")
@click.option("--json", "as_json", is_flag=True, help="Print answer and trace as JSON.")
def command(
    file: Path,
    prompt: str,
    max_tokens: int,
    temperature: float | None,
    no_stream: bool,
    completion: bool,
    as_json: bool,
) -> int:
    """Send PROMPT through prefill and decode of FILE's cluster; the answer goes to stdout, its trace to stderr.

    Exit status: 1 when it failed.
    """
    if not prompt.strip():
        raise UsageError("the prompt is empty: there is nothing to complete")
    request = Ask(
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        chat=not completion,
        stream=not no_stream,
    )

    async def work(fleet: Fleet) -> int:
        printer = Printer(silent=as_json)
        answer = await fleet.ask(request, printer.take)
        printer.finish(answer)
        if as_json:
            print_json({"schema_version": 1, **asdict(answer)})
        if trace := trace_line(answer):
            narrate(trace)
        if answer.error:
            serving = fleet.snapshot.serving
            narrate(f"failed: {answer.error} (the cluster is {serving.word})")
        return 1 if answer.error else 0

    return with_fleet(file, work, read_only=True, npus=False, targets=("all",))


class Printer:
    """Prints what is new of a growing answer."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._printed = ""

    def take(self, progress: AskProgress) -> None:
        """Print what has come since the last call."""
        if self._silent or not progress.text.startswith(self._printed):
            return
        new = progress.text[len(self._printed) :]
        if new:
            click.echo(new, nl=False)
            self._printed = progress.text

    def finish(self, answer: AskProgress) -> None:
        """Print the rest and end the line."""
        self.take(answer)
        if self._printed and not self._silent:
            click.echo()


def trace_line(answer: AskProgress) -> str:
    """Return which ranks answered and how long each part took."""
    chosen = " -> ".join(rank for rank in (answer.prefill, answer.decode) if rank)
    parts = [chosen] if chosen else []
    for name, seconds in (
        ("queue", answer.queue_s),
        ("prefill", answer.prefill_s),
        ("transfer", answer.transfer_s),
        ("first token", answer.ttft_s),
    ):
        if seconds is not None:
            parts.append(f"{name} {_short(seconds)}")
    if answer.tokens_per_s is not None:
        parts.append(f"{answer.tokens_per_s:.1f} tok/s")
    if answer.tokens is not None:
        parts.append(f"{answer.tokens} tokens")
    if answer.finish_reason:
        parts.append(answer.finish_reason)
    return "  ".join(parts)


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
