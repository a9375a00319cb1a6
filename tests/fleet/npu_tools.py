"""The vendor tools of one server in memory, as `MemoryNode.handler`, and a link that hands out its agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

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

LINK_STAT = """[devid {0}]current time        : Tue Oct 28 21:46:46 2025
[devid {0}]link up count       : 2
[devid {0}]link down count     : 1
[devid {0}]link change records :
[devid {0}]    Sun Oct  5 10:13:51 2025    LINK UP
[devid {0}]    Sun Oct  5 10:13:50 2025    LINK DOWN
[devid {0}]    Sun Oct  5 10:13:35 2025    LINK UP"""
TLS = (
    "dev_id:{0}, tls switch[0](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), "
    "tls alarm time threshold[60]days"
)
LLDP = """Chassis ID TLV
\tMAC: 00:00:5e:00:53:01
Port ID TLV
\tIfname: 400GE1/1/{0}
Time to Live TLV
\t120
System Name TLV
\tleaf1
End of LLDPDU TLV"""
ECC = """NPU ID : 1
Chip Count : 1

HBM Single Bit Error Count : 0
HBM Double Bit Error Count : 0
HBM Single Bit Isolated Pages Count : 0
HBM Double Bit Isolated Pages Count : 0"""


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
        self.said: dict[tuple[int, str], str] = {}
        """Device and query -> what the tool answers instead."""
        self.takes = 0.0
        """Seconds of a call."""
        self.shared: dict[tuple[str, ...], tuple[float, Completed]] = {}
        """Readings that consoles share, by argv, with the time at which the call ended."""
        self.locks: dict[object, asyncio.Lock] = {}
        """One call at a time of a device, or of what is asked for the node, as agents keep it over consoles."""
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
            case "-link_stat":
                return LINK_STAT.format(device), "", 0
            case "-stat":
                return "packet statistics:\nmac_rx_fcs_err_pkt_num:0\nroce_rx_err_pkt_num:7", "", 0
            case "-tls":
                return TLS.format(device), "", 0
            case "-lldp":
                return LLDP.format(device), "", 0
            case "-optical":
                return "optical info:\npresent : present\nRx Los Flag : 0x0", "", 0
            case "ecc":
                return ECC, "", 0
            case "hccs":
                return "hccs health status : OK\nhccs retry count : [0 0]\nhccs error count : [0 0]", "", 0
            case "spod-info":
                sdid = 40 << 22 | device // 2 << 18 | device % 2 << 16 | device
                return f"SDID : {sdid}\nSuper Pod Size : 384\nSuper Pod ID : 0\nServer Index : 40", "", 0
            case _:
                return "", "Get unknown option!", 3

    def _asked(self, argv: tuple[str, ...]) -> tuple[str, int]:
        """Return query and device of a call."""
        if argv[0] == "npu-smi":
            npu, chip = int(argv[5]), int(argv[7])
            return argv[3], npu * 2 + chip if self.a3 else npu
        return argv[3], int(argv[2])

    def handle(self, command: Command) -> Completed:
        """Answer one command."""
        self.calls.append((self.clock.monotonic(), command.argv))
        if self.missing:
            return Completed(command.argv, None, b"", b"", error=f"No such file or directory: '{command.argv[0]}'")
        if command.argv == ("npu-smi", "info"):
            return Completed(command.argv, 0, self.table().encode(), b"")
        query, device = self._asked(command.argv)
        if self.busy.get(device, 0) > 0:
            self.busy[device] -= 1
            return Completed(command.argv, 11, b"hccn_tool is busy, please try again.\n", b"")
        stdout, stderr, status = self._text(query, device)
        stdout = self.said.get((device, query), stdout) + "\n"
        return Completed(command.argv, status, stdout.encode(), stderr.encode())


class ToolsAgent(MemoryAgent):
    """An agent of a node whose tools may hang until their time-out; consoles share readings and locks."""

    def __init__(self, node: MemoryNode, tools: Tools) -> None:
        super().__init__(node)
        self.tools = tools

    async def batch(
        self, commands: Sequence[Command], *, parallel: int = 4
    ) -> AsyncIterator[tuple[Command, Completed]]:
        await self._answer()
        for command in commands:
            key = command.argv if command.device is None else command.device
            async with self.tools.locks.setdefault(key, asyncio.Lock()):
                completed = self._shared(command) or await self._called(command)
            yield command, completed

    def _shared(self, command: Command) -> Completed | None:
        ended, completed = self.tools.shared.get(command.argv, (float("-inf"), None))
        age = self.tools.clock.monotonic() - ended
        fresh = completed is not None and 0 <= age <= command.max_age
        return replace(completed, age=max(age, 1e-6)) if completed is not None and fresh else None

    async def _called(self, command: Command) -> Completed:
        tools = self.tools
        tools.running[command.device] = tools.running.get(command.device, 0) + 1
        tools.most_at_once = max(tools.most_at_once, tools.running[command.device])
        try:
            if command.device in tools.hanging:
                tools.calls.append((tools.clock.monotonic(), command.argv))
                await tools.clock.sleep(command.timeout)
                completed = Completed(command.argv, -9, b"", b"", timed_out=True)
            else:
                if tools.takes:
                    await tools.clock.sleep(tools.takes)
                completed = await self.run(command)
        finally:
            tools.running[command.device] -= 1
        tools.shared[command.argv] = (tools.clock.monotonic(), completed)
        return completed


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
