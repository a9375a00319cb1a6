"""The vendor tools of one server in memory, as `MemoryNode.handler`, and a link that hands out its agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from pdtui.clock import Clock
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.commands import Command, Completed
from tests.support.memory_node import MemoryAgent, MemoryLink, MemoryNode

HEAD = """+-----+
| npu-smi 25.0.rc1                 Version: 25.0.rc1                                             |
+-----+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip{phy}              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+=====+
"""
FOOT = """+-----+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+=====+
"""


class Tools:
    """Answers `npu-smi info` and `hccn_tool`; what is set per device is printed."""

    def __init__(self, clock: Clock, *, a3: bool = True) -> None:
        self.clock = clock
        self.a3 = a3
        self.devices = list(range(16 if a3 else 8))
        self.health = dict.fromkeys(self.devices, "OK")
        self.link = dict.fromkeys(self.devices, "UP")
        self.vnic = dict.fromkeys(self.devices, "UP")
        self.net_health = dict.fromkeys(self.devices, "Success")
        self.hbm = dict.fromkeys(self.devices, 3000)
        self.processes: list[tuple[int, int, str, int]] = []
        """Device, pid, name, MB."""
        self.configured = True
        self.busy: dict[int, int] = {}
        """Device -> further calls that find the tool busy."""
        self.missing = False
        """No tool is installed."""
        self.hanging: set[int | None] = set()
        """Devices on which hccn_tool hangs; None: npu-smi hangs."""
        self.calls: list[tuple[float, tuple[str, ...]]] = []
        self.running: dict[int | None, int] = {}
        self.most_at_once = 0

    def table(self) -> str:
        """Print `npu-smi info`."""
        rows = []
        for device in self.devices:
            npu, chip = divmod(device, 2) if self.a3 else (device, 0)
            ids = f"{chip}     {device}" if self.a3 else f"{chip}"
            rows += [
                f"| {npu}     Ascend910 | {self.health[device]} | 160.7       45                0    / 0 |",
                f"| {ids} | 0000:9D:00.0 | 0           0    / 0          {self.hbm[device]} / 65536 |",
                "+-----+",
            ]
        listed = []
        for device, pid, name, memory in self.processes:
            npu, chip = divmod(device, 2) if self.a3 else (device, 0)
            listed.append(f"| {npu}       {chip} | {pid} | {name} | {memory} |")
        listed = listed or [
            f"| No running processes found in NPU {d // 2 if self.a3 else d} |" for d in self.devices
        ]
        head = HEAD.format(phy="  Phy-ID" if self.a3 else "        ")
        return head + "\n".join([*rows, FOOT + "\n".join(listed), "+=====+\n"])

    def _text(self, query: str, device: int) -> tuple[str, str, int]:
        if device not in self.devices:
            return "", "The device is not exist!", 4
        match query:
            case "-link":
                return f"link status: {self.link[device]}", "", 0
            case "-net_health":
                return f"net health status: {self.net_health[device]}", "", 0
            case "-vnic":
                lines = (f"vnic link status: {self.vnic[device]}", f"vnic ipaddr: 192.0.2.{device}")
                return "\n".join([*lines, "vnic netmask: 255.0.0.0"]), "", 0
            case "-ip" if self.configured:
                return f"ipaddr:10.0.0.{device}\nnetmask:255.255.255.0", "", 0
            case "-ip":
                return "", "Get ipconf failed, because no ip was preset there!", 13
            case "-netdetect":
                return "netdetect address: 10.0.0.254", "", 0
            case _:
                return "", "Get unknown option!", 3

    def handle(self, command: Command) -> Completed:
        """Answer one command."""
        self.calls.append((self.clock.monotonic(), command.argv))
        if self.missing:
            return Completed(command.argv, None, b"", b"", error=f"No such file or directory: '{command.argv[0]}'")
        if command.argv == ("npu-smi", "info"):
            return Completed(command.argv, 0, self.table().encode(), b"")
        _, _, number, query, _ = command.argv
        device = int(number)
        if self.busy.get(device, 0) > 0:
            self.busy[device] -= 1
            return Completed(command.argv, 11, b"hccn_tool is busy, please try again.\n", b"")
        stdout, stderr, status = self._text(query, device)
        return Completed(command.argv, status, stdout.encode(), stderr.encode())


class ToolsAgent(MemoryAgent):
    """An agent whose node has tools that may hang until their time-out."""

    def __init__(self, node: MemoryNode, tools: Tools) -> None:
        super().__init__(node)
        self.tools = tools

    async def batch(
        self, commands: Sequence[Command], *, parallel: int = 4
    ) -> AsyncIterator[tuple[Command, Completed]]:
        tools = self.tools
        for command in commands:
            tools.running[command.device] = tools.running.get(command.device, 0) + 1
            tools.most_at_once = max(tools.most_at_once, tools.running[command.device])
            try:
                if command.device in tools.hanging:
                    tools.calls.append((tools.clock.monotonic(), command.argv))
                    await tools.clock.sleep(command.timeout)
                    yield command, Completed(command.argv, -9, b"", b"", timed_out=True)
                else:
                    yield command, await self.run(command)
            finally:
                tools.running[command.device] -= 1


class ToolsLink(MemoryLink):
    """A link to a node with tools."""

    def __init__(self, node: MemoryNode, tools: Tools) -> None:
        super().__init__(node)
        self.tools = tools
        self._tools_agent: ToolsAgent | None = None
        self.up()

    @property
    def host_agent(self) -> NodeAgent | None:
        return self._tools_agent

    def up(self) -> None:
        """Connect anew."""
        self._tools_agent = ToolsAgent(self.node, self.tools)

    def down(self) -> None:
        """Lose the connection."""
        if self._tools_agent is not None:
            self._tools_agent.lost.set()
        self._tools_agent = None
