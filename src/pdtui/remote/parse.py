"""The agent's JSON into the types of `interface`. What a node says is hostile: all text is cleaned here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from pdtui.remote.messages.acks import AHEAD, LONGEST, Ack, AckList
from pdtui.remote.messages.commands import (
    Command,
    Completed,
    HttpReply,
    LogChunk,
)
from pdtui.remote.messages.leases import (
    Lease,
    LeaseClaim,
    LeaseEnd,
    LeaseResult,
)
from pdtui.remote.messages.processes import (
    Listener,
    Output,
    OutputKind,
    ProcessInfo,
)
from pdtui.remote.messages.ranks import (
    GoneWith,
    ProcessState,
    RankRecord,
    StartResult,
    StopResult,
    WarmUp,
)
from pdtui.text import clean, clean_line

Json = Mapping[str, Any]

LARGEST = 1e15
"""No time, size or count of a node is larger."""


def text(value: object) -> str:
    """Return a clean line; empty for what is missing."""
    return clean_line(str(value)) if value is not None else ""


def texts(value: object) -> tuple[str, ...]:
    """Return clean words; newlines inside stay, an argument may have them."""
    return tuple(clean(str(word)) for word in value) if isinstance(value, list) else ()


def whole(value: object) -> int | None:
    """Return an integer, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def wholes(value: object) -> tuple[int, ...]:
    """Return the integers of a list."""
    return tuple(n for n in map(whole, value) if n is not None) if isinstance(value, list) else ()


def real(value: object) -> float:
    """Return a number as float; 0.0 for anything else, and for what is not finite."""
    if not isinstance(value, int | float) or abs(value) > LARGEST or math.isnan(value):
        return 0.0
    return float(value)


def table(value: object) -> dict[str, Any]:
    """Return a mapping with clean keys; empty for anything else."""
    return {text(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def completed(command: Command, raw: Json, blobs: Mapping[str, bytes]) -> Completed:
    """Read the result of a command."""
    return Completed(
        argv=command.argv,
        status=whole(raw.get("status")),
        stdout=blobs.get("stdout", b""),
        stderr=blobs.get("stderr", b""),
        timed_out=bool(raw.get("timed_out")),
        truncated=bool(raw.get("truncated")),
        error=text(raw.get("error")),
        started=real(raw.get("started")),
        seconds=real(raw.get("seconds")),
        age=max(0.0, real(raw.get("age"))),
    )


def rank_record(raw: Json) -> RankRecord:
    """Read a rank directory; a state that we do not know counts as unkept, so that nothing is started over it."""
    word = str(raw.get("state"))
    state = ProcessState(word) if word in set(ProcessState) else ProcessState.UNKEPT
    ended, asked = raw.get("ended"), raw.get("stopped_at")
    return RankRecord(
        cluster=text(raw.get("cluster")),
        rank=text(raw.get("rank")),
        state=state,
        pid=whole(raw.get("pid")),
        keeper=whole(raw.get("keeper")),
        run=whole(raw.get("run")) or 0,
        started=real(raw.get("started")),
        by=text(raw.get("by")),
        digest=text(raw.get("digest")),
        argv=texts(raw.get("argv")),
        env={key: clean(str(value)) for key, value in table(raw.get("env")).items()},
        api_port=whole(raw.get("api_port")) or 0,
        address=text(raw.get("address")),
        ports=wholes(raw.get("ports")),
        devices=wholes(raw.get("devices")),
        hbm_before={key: int(real(value)) for key, value in table(raw.get("hbm_before")).items()},
        exit_status=whole(raw.get("exit_status")),
        exit_signal=whole(raw.get("exit_signal")),
        ended=real(ended) if ended is not None else None,
        gone_with=_gone_with(raw.get("gone_with")),
        stop_requested=bool(raw.get("stop_requested")),
        stopped_by=text(raw.get("stopped_by")),
        stopped_at=real(asked) if asked is not None else None,
        log=text(raw.get("log")),
        log_note=text(raw.get("log_note")),
        processes=wholes(raw.get("processes")),
        warm_up=warm_up(table(raw.get("warm_up"))),
        evidence=text(raw.get("evidence")),
        format=whole(raw.get("format")) or 0,
    )


def _gone_with(word: object) -> GoneWith:
    known: tuple[GoneWith, ...] = ("keeper", "container", "machine")
    return next((one for one in known if one == word), "")


def warm_up(raw: Json) -> WarmUp | None:
    """Read what is known of a warm-up; None when none was sent, or of a kind that we do not know."""
    word = raw.get("state")
    if word not in ("running", "ok", "skipped", "failed"):
        return None
    return WarmUp(
        state=word,
        at=real(raw.get("at")),
        seconds=real(raw.get("seconds")),
        error=text(raw.get("error"))[:300],
        tokens=whole(raw.get("tokens")) or 0,
    )


def start_result(raw: Json) -> StartResult:
    """Read the result of a start."""
    outcome = "started" if raw.get("outcome") == "started" else "already_running"
    return StartResult(
        "started" if outcome == "started" else "already_running", rank_record(table(raw.get("record")))
    )


def stop_result(raw: Json) -> StopResult:
    """Read the result of a stop; an outcome that we do not know counts as still running."""
    record = rank_record(table(raw.get("record")))
    word = raw.get("outcome")
    return StopResult(
        outcome="stopped" if word == "stopped" else "not_running" if word == "not_running" else "still_running",
        killed=bool(raw.get("killed")),
        survivors=wholes(raw.get("survivors")),
        record=None if record.state is ProcessState.NONE else record,
    )


def listener(raw: Json) -> Listener:
    """Read one listening port."""
    return Listener(
        address=text(raw.get("address")),
        port=whole(raw.get("port")) or 0,
        pid=whole(raw.get("pid")),
        command=text(raw.get("command")),
        rank=text(raw.get("rank")),
    )


def process(raw: Json) -> ProcessInfo:
    """Read one process."""
    return ProcessInfo(
        pid=whole(raw.get("pid")) or 0,
        ppid=whole(raw.get("ppid")) or 0,
        session=whole(raw.get("session")) or 0,
        started=real(raw.get("started")),
        argv=texts(raw.get("argv")),
        env={key: clean(str(value)) for key, value in table(raw.get("env")).items()},
        user=text(raw.get("user")),
        start=whole(raw.get("start")) or 0,
        rank=text(raw.get("rank")),
        inner=whole(raw.get("inner")) or 0,
        apart=raw.get("apart") is True,
        tree=wholes(raw.get("tree")),
        output=output(table(raw.get("output"))),
        env_known=isinstance(raw.get("env"), dict),
        brief="argv" not in raw,
    )


def output(raw: Json) -> Output:
    """Read where a process's stdout goes; a path that has to be cleaned cannot be followed."""
    word, path = raw.get("kind"), str(raw.get("path") or "")
    kinds: tuple[OutputKind, ...] = get_args(OutputKind)
    kind: OutputKind = next((known for known in kinds if known == word), "other")
    return Output(kind, path if clean_line(path) == path else "", text(raw.get("name")), text(raw.get("id")))


def http_reply(raw: Json, blobs: Mapping[str, bytes]) -> HttpReply:
    """Read the answer of a local port."""
    return HttpReply(
        status=whole(raw.get("status")),
        body=blobs.get("body", b""),
        error=text(raw.get("error")),
        seconds=real(raw.get("seconds")),
    )


def log_chunk(path: str, raw: Json, data: bytes) -> LogChunk:
    """Read a piece of a followed file; its bytes are cleaned line by line where they become text."""
    offset = whole(raw.get("offset")) or 0
    return LogChunk(
        path=path,
        offset=offset,
        data=data,
        next_offset=offset + len(data),
        gap=bool(raw.get("gap")),
        at=real(raw.get("at")),
    )


def lease(raw: Json) -> Lease:
    """Read a lease; one without ranks covers all, which is said by an empty list."""
    end = table(raw.get("broken"))
    return Lease(
        claim=LeaseClaim(
            id=text(raw.get("id")),
            holder=text(raw.get("holder")),
            by=text(raw.get("by")),
            origin=text(raw.get("from")),
            verb=text(raw.get("verb")),
            what=text(raw.get("what")),
            ranks=texts(raw.get("ranks")),
        ),
        age=real(raw.get("age")),
        left=real(raw.get("left")),
        end=LeaseEnd(text(end.get("by")), text(end.get("from")), text(end.get("reason")), bool(end.get("expired")))
        if end
        else None,
    )


def lease_result(raw: Json) -> LeaseResult:
    """Read what became of taking a lease; an outcome that we do not know counts as refused."""
    found = raw.get("leases")
    leases = tuple(lease(one) for one in found if isinstance(one, dict)) if isinstance(found, list) else ()
    word = raw.get("state")
    return LeaseResult("held" if word == "held" else "broken" if word == "broken" else "refused", leases)


def ack(raw: Json) -> Ack:
    """Read an acknowledgement."""
    return Ack(
        key=text(raw.get("key")),
        id=text(raw.get("id")),
        reason=text(raw.get("reason")),
        by=text(raw.get("by")),
        origin=text(raw.get("from")),
        age=min(LONGEST, max(-AHEAD, real(raw.get("age")))),
        left=min(LONGEST, max(0.0, real(raw.get("left")))),
        removed=bool(raw.get("removed")),
    )


def ack_list(raw: Json) -> AckList:
    """Read a node's acknowledgements."""
    found = raw.get("acks")
    acks = tuple(map(ack, (one for one in found if isinstance(one, dict)))) if isinstance(found, list) else None
    return AckList(text(raw.get("digest")), acks)
