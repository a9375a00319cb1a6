"""From what was seen to facts: one value a thing that was tried, which every implementation has to share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pdtui.readings.vllm_log import StageReader, prefix_of, severity
from pdtui.readings.vllm_metrics import KEEP
from pdtui.readings.vllm_reports import throughput_of, transfers_of
from tests.engines import normal
from tests.engines.failures import FAILURES, Failure

Facts = dict[str, Any]


def facts_of(seen: Mapping[str, Any]) -> Facts:
    """Return the facts in what `observe` saw; whatever broke is a fact of its own."""
    facts: Facts = {}
    parts = {"start": _starts, "http": _answers, "load": _load, "kv": _flow, "metrics": _metrics, "log": _logs,
             "exit": _exits, "fail": _fails}  # fmt: skip
    for name, part in parts.items():
        found = seen.get(name)
        if found is None:
            continue
        if "broke" in found:
            facts[f"{name}: all"] = {"broke": found["broke"].splitlines()[-1]}
            continue
        facts |= {f"{name}: {key}": value for key, value in part(found)}
    return facts


def _answers(seen: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, answer in seen.items():
        yield name, normal.answer(answer)


# -- starts --


def stages(log: str) -> list[str]:
    """Return the stages that the product's reader finds in a log."""
    reader, found = StageReader(), list[str]()
    for line in re.split(r"[\r\n]+", log):
        if reader.feed(line):
            found.append(reader.stage)
    return found


def _starts(seen: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, start in seen.items():
        titles = [_title(command) for _, command, _ in start["processes"]]
        yield f"{name}, health", start["health"]
        yield f"{name}, stages", stages(start["log"])
        yield f"{name}, who writes its log", _writers(start["log"])
        yield (
            f"{name}, processes",
            sorted(
                f"{_title(command)} ({comm}) of {titles[parent] if parent >= 0 else 'the starter'}"
                for comm, command, parent in start["processes"]
            ),
        )
        yield f"{name}, ports", {use: f"{held[0]} by {held[1]}" for use, held in start["ports"].items()}


def _title(command: str) -> str:
    if command.startswith("VLLM::"):
        return command
    if "resource_tracker" in command:
        return "resource tracker"
    return "vllm serve" if " serve " in command else command.split(" ")[0]


def _writers(log: str) -> list[str]:
    """Return which processes put their name before a line, and how."""
    found = set()
    for line in log.splitlines():
        prefix = prefix_of(line)
        if prefix is not None:
            parts = [prefix.process, "pid" if prefix.pid else "", "place" if prefix.place else ""]
            found.add(" ".join(part for part in parts if part) or "uvicorn")
    return sorted(found)


# -- figures --


_TIMES = ("_seconds_", "_created", "_bucket", "estimated_", "process_", "python_", "http_", "_time_", "usage_perc",
          "nixl_bytes_transferred_sum", "nixl_num_descriptors_sum")  # fmt: skip

_CHANCE = ("nixl_num_failed_transfers", "nixl_num_kv_expired_reqs", "nixl_num_notifications_after_expiry")


def _grown(values: Mapping[str, float]) -> dict[str, float]:
    """Return growth without what depends on time or size."""
    kept = {key: value for key, value in values.items() if not any(word in key for word in _TIMES)}
    # How often one failed pull is counted depends on how far its handshake was, and whether it frees P's blocks on
    # whether that was before the lease ended.
    for key in kept:
        if any(word in key for word in _CHANCE):
            kept[key] = min(kept[key], 1.0)
    return {_without_model(key): value for key, value in sorted(kept.items())}


def _without_model(series: str) -> str:
    return re.sub(r'(engine|model_name)="[^"]*",?', "", series).replace("{}", "").replace(",}", "}")


def _load(seen: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    states = ("num_requests_running", "num_requests_waiting", "request_success", "prompt_tokens")
    for when in ("during", "after"):
        kept = {key: value for key, value in seen[when].items() if any(word in key for word in states)}
        yield when, _grown(kept)
    yield "all were seen at once", seen["full"]


def _metrics(seen: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name, text in seen.items():
        families = dict(_families(text))
        read = {family for family in families if any(_belongs(sample, family) for sample in KEEP)}
        yield f"{name}, families that are read here", {key: families[key] for key in sorted(read)}
        yield f"{name}, other families", {key: families[key] for key in sorted(set(families) - read)}


def _belongs(sample: str, family: str) -> bool:
    return sample == family or sample in {f"{family}{end}" for end in ("_total", "_sum", "_count")}


def _families(text: str) -> Iterator[tuple[str, str]]:
    for family in text_string_to_metric_families(text):
        labels = {label for sample in family.samples for label in sample.labels}
        yield family.name, f"{family.type} {{{', '.join(sorted(labels))}}}"


def _logs(seen: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the words of the first line about a server's work that the product can read, of each kind."""
    for name, log in seen.items():
        for what, read in (("throughput", throughput_of), ("KV transfers", transfers_of)):
            line = next((line for line in log.splitlines() if read(line) is not None), "")
            yield f"{name}, {what}", _WHILE.sub("", _FIGURE.sub("<n>", message(line))) if line else ""


_FIGURE = re.compile(r"\b\d[\d.]*\b")
_WHILE = re.compile(r", Deferred: <n> reqs|, KV fetch: [^:]* completed waiting")
"""Said as long as something is deferred or fetched."""


# -- the pull flow --


def _flow(seen: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, found in seen.items():
        if not isinstance(found, Mapping):
            yield name, found
            continue
        fact: Facts = {}
        if "headers" in found:
            fact = normal.answer(found)
            del fact["headers"]
        for key, value in found.items():
            if key == "seconds":
                fact["takes"] = "seconds" if value > 2 else "no time"
            elif key == "params":
                fact[key] = normal.parameters(value)
            elif key == "counts":
                fact[key] = _grown(value)
            elif key not in ("headers", "body", "status", "counted", "mixed"):
                fact[key] = value
        yield name, fact


# -- ends --


def first_error(log: str) -> str:
    """Return the first line of a log that is an error to the product, without ids and places."""
    for line in log.splitlines():
        if severity(line) == "error":
            return message(line)
    return ""


def message(line: str) -> str:
    """Return a line as who says what."""
    prefix = prefix_of(line)
    if prefix is None:
        return normal.words(line)
    return normal.words(f"{prefix.process or 'uvicorn'} {prefix.level} {prefix.message}")


def _exits(seen: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield how servers ended.

    At TERM a stream gets an error event, or nothing more and no end for as long as its client waits: both have
    been seen of the same real server.
    """
    for name, end in seen.items():
        fact: Facts = {}
        for key, value in end.items():
            if key == "log":
                fact["first error"] = first_error(value)
            elif key == "seconds":
                fact["takes"] = "some seconds" if value < 45 else "long"
            elif isinstance(value, Mapping) and "headers" in value:
                fact[key] = normal.answer(value)
            elif key == "health" and isinstance(value, list):
                fact["503 before the end"] = 503 in value
            elif key == "left":
                fact[key] = [name for name in value if name.startswith("VLLM")]
            elif key == "stream":
                fact["stream ends as asked"] = '"finish_reason":"length"' in value
            else:
                fact[key] = value
        yield name, fact


def _fails(seen: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    known = {failure.name: failure for failure in FAILURES}
    for name, start in seen.items():
        yield name, _fail(known[name], start)


_NOISE = re.compile(r"resource_tracker|warnings\.warn|nanobind|leaked")
"""What Python and a library say at their end, whatever happened."""


def _fail(failure: Failure, start: Mapping[str, Any]) -> Facts:
    lines = [line for line in re.split(r"[\r\n]+", start["log"]) if line.strip() and not _NOISE.search(line)]
    cause = next((message(line) for line in reversed(lines) if failure.cause and failure.cause in line), "")
    return {
        "exit": start["exit"],
        "health": start["health"],
        "gone": start["gone"],
        "stages": stages(start["log"]),
        "cause": cause,
        "first error": first_error(start["log"]),
        "last line": message(lines[-1]) if lines and start["exit"] is not None else "",
    }
