"""What `check` warns of is in the console's list of findings, what is accepted with its reason."""

from __future__ import annotations

from pdtui.topology.findings import Finding, Severity
from pdtui.topology.rules.explained import EXPLANATIONS
from tests.console.driving import console
from tests.support.fake_fleet import FakeFleet

RESERVED = Finding("R16", Severity.INFO, "ports 36000 lie", "a/c.yaml", 9, 1, "groups.p1.kv_port", "by sysctl")
OF_DECODE = Finding("R15", Severity.WARNING, "kv ports lie below", "a/c.yaml", 12, 1, "groups.decode.kv_port")
OF_ALL = Finding("R20", Severity.WARNING, "with stagger 0", "a/c.yaml", 3, 1, "start.stagger")
NOTE = Finding("F11", Severity.INFO, "follows anyway", "a/c.yaml", 3, 1, "groups.decode.args.port")


async def test_findings_of_the_file_stand_last_where_they_concern_the_selection() -> None:
    async with console(FakeFleet.healthy(), findings=(RESERVED, OF_DECODE, OF_ALL, NOTE)) as screen:
        screen.app.main.go_to_subject("decode/3")
        await screen.press("i", "tab")
        await screen.press("z")
        assert "c.yaml:12  warning: kv ports lie below (R15)" in screen.text
        assert "c.yaml:3  warning: with stagger 0 (R20)" in screen.text
        assert " ".join(EXPLANATIONS["R15"].why.split()[:5]) in screen.text
        assert "R16" not in screen.text
        assert "F11" not in screen.text
        await screen.press("escape")
        screen.app.main.go_to_subject("p1/0")
        await screen.press("i", "tab", "z", "down")
        assert "c.yaml:9  accepted: ports 36000 lie (R16)" in screen.text
        assert "by sysctl" in screen.text
        assert "R15" not in screen.text
