"""Run rendered scripts by real bash, with stand-ins for `vllm` and for vLLM-Ascend's launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pdtui.topology.render.files import RenderedFile

VLLM = """\
#!/bin/sh
cat /proc/$$/environ > "$STARTED/$$.environ"
cat /proc/$$/cmdline > "$STARTED/$$.cmdline"
"""

LAUNCHER = """\
import argparse, subprocess
parser = argparse.ArgumentParser()
for name in ("--dp-size", "--tp-size", "--dp-size-local", "--dp-rank-start", "--vllm-start-port"):
    parser.add_argument(name, type=int, required=True)
parser.add_argument("--dp-address", required=True)
parser.add_argument("--dp-rpc-port", required=True)
args = parser.parse_args()
children = []
for index in range(args.dp_size_local):
    devices = ",".join(str(npu) for npu in range(index * args.tp_size, (index + 1) * args.tp_size))
    words = [devices, args.vllm_start_port + index, args.dp_size, args.dp_rank_start + index]
    words += [args.dp_address, args.dp_rpc_port, args.tp_size]
    children.append(subprocess.Popen(["bash", "./run_dp_template.sh", *map(str, words)]))
for child in children:
    child.wait()
"""
"""What launch_online_dp.py does with its options, in as few lines."""


@dataclass(frozen=True)
class Start:
    """One start of the server: its words after `vllm`, and its environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def port(self) -> int:
        """Return the port of the API server."""
        return int(self.argv[self.argv.index("--port") + 1])


class Bench:
    """A folder with stand-ins, in which scripts run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = folder / "started"
        self.bin = folder / "bin"
        for path in (self.started, self.bin):
            path.mkdir()
        for name, text in {
            "vllm": VLLM,
            "sleep": "#!/bin/sh\n",
            "python3": f'#!/bin/sh\nexec {sys.executable} -IS "$@"\n',
        }.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def write(self, files: Iterable[RenderedFile]) -> Path:
        """Write rendered files and the launcher beside each launch.sh; return their folder."""
        out = self.folder / "out"
        for file in files:
            path = out / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text)
            if file.kind == "launch":
                (path.parent / "launch_online_dp.py").write_text(LAUNCHER)
        return out

    def env(self, **more: str) -> dict[str, str]:
        """Return the environment in which scripts run."""
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "STARTED": str(self.started),
            "LC_ALL": "C.UTF-8",
            **more,
        }

    def run(self, script: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a script from another folder than its own."""
        return subprocess.run(
            ["bash", str(script), *words],
            cwd=self.folder,
            env=self.env(**more),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def take(self) -> list[Start]:
        """Return the starts since the last time, by port."""
        found = []
        for path in self.started.glob("*.cmdline"):
            environ = path.with_suffix(".environ")
            words = os.fsdecode(path.read_bytes()).split("\0")[2:-1]
            pairs = (pair.partition("=") for pair in os.fsdecode(environ.read_bytes()).split("\0")[:-1])
            env = {name: value for name, _, value in pairs}
            found.append(Start(tuple(words), {k: v for k, v in env.items() if k not in _SHELLS_OWN}))
            path.unlink()
            environ.unlink()
        return sorted(found, key=lambda start: start.port)


_SHELLS_OWN = {"_", "SHLVL", "PWD", "OLDPWD"}
