"""Counters of HTTP answers, as vLLM's instrumentation of its server has them."""

HIGHR = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0,
         30.0, 60.0)  # fmt: skip
COARSE = (0.1, 0.5, 1.0)
LEFT_OUT = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")


class HttpMetrics:
    """What has been answered since the start; whoever calls holds a lock."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._answers: dict[tuple[str, str, str], int] = {}
        self._sizes: dict[str, list[float]] = {}
        self._coarse: dict[tuple[str, str], list[float]] = {}
        self._fine = {("", ""): [0.0] * (len(HIGHR) + 2)}
        """Count and sum of each handler's seconds, then how many were within each bound."""

    def count(self, handler: str, method: str, status: int, sizes: tuple[int, int], seconds: float) -> None:
        """Count an answer: bytes of request and answer, and how long it took to begin."""
        if handler in LEFT_OUT:
            return
        key = (handler, method, f"{status // 100}xx")
        self._answers[key] = self._answers.get(key, 0) + 1
        count, asked, answered = self._sizes.get(handler, [0.0, 0.0, 0.0])
        self._sizes[handler] = [count + 1, asked + sizes[0], answered + sizes[1]]
        _observe(self._coarse.setdefault((handler, method), [0.0] * (len(COARSE) + 2)), COARSE, seconds)
        _observe(self._fine["", ""], HIGHR, seconds)

    def write(self, lines: list[str]) -> None:
        """Add the lines in Prometheus' text format."""
        created = f"{self._started:.7e}"
        lines.append("# TYPE http_requests_total counter")
        keys = {key: f'{{handler="{key[0]}",method="{key[1]}",status="{key[2]}"}}' for key in self._answers}
        lines += [f"http_requests_total{keys[key]} {float(count)}" for key, count in self._answers.items()]
        lines.append("# TYPE http_requests_created gauge")
        lines += [f"http_requests_created{labels} {created}" for labels in keys.values()]
        for place, name in ((1, "http_request_size_bytes"), (2, "http_response_size_bytes")):
            lines.append(f"# TYPE {name} summary")
            for handler, values in self._sizes.items():
                lines.append(f'{name}_count{{handler="{handler}"}} {values[0]}')
                lines.append(f'{name}_sum{{handler="{handler}"}} {values[place]}')
            lines.append(f"# TYPE {name}_created gauge")
            lines += [f'{name}_created{{handler="{handler}"}} {created}' for handler in self._sizes]
        self._histogram(lines, "http_request_duration_highr_seconds", self._fine, HIGHR)
        self._histogram(lines, "http_request_duration_seconds", self._coarse, COARSE)

    def _histogram(
        self, lines: list[str], name: str, values: dict[tuple[str, str], list[float]], bounds: tuple[float, ...]
    ) -> None:
        lines.append(f"# TYPE {name} histogram")
        for (handler, method), (total, seconds, *within) in values.items():
            front, back = (f'handler="{handler}",', f',method="{method}"') if handler else ("", "")
            for bound, count in zip((*bounds, "+Inf"), (*within, total), strict=True):
                lines.append(f'{name}_bucket{{{front}le="{bound}"{back}}} {count}')
            labels = f"{{{front}{back[1:]}}}" if handler else ""
            lines.append(f"{name}_count{labels} {total}")
            lines.append(f"{name}_sum{labels} {seconds}")
        lines.append(f"# TYPE {name}_created gauge")
        for handler, method in values:
            labels = f'{{handler="{handler}",method="{method}"}}' if handler else ""
            lines.append(f"{name}_created{labels} {self._started:.7e}")


def _observe(values: list[float], bounds: tuple[float, ...], seconds: float) -> None:
    values[0] += 1
    values[1] += seconds
    for place, bound in enumerate(bounds, 2):
        values[place] += seconds <= bound
