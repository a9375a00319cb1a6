"""A secret in every place of a file, by reference or by mistake: nothing that pdtui prints or writes has it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.command import pdtui
from tests.support.ports import free_ports

REFERRED = "c4nary-behind-a-reference"
WRITTEN = "c4nary-in-the-file"

FILE = """
pdtui: 1
name: {name}
platform: a3
vllm_ascend: "0.22.1rc1"
runtime:
  setup: [{folder}/setup.sh]
  state_dir: {folder}/state
  options: [-e, "HF_TOKEN={written}", "--env=STORE_PASSWORD={written}"]
  image: vllm-ascend:v0.22.1rc1-a3
model: {{path: /models/none, served_name: tiny, kind: dense}}
kv: {{connector: MooncakeConnectorV1, extra: {{store: {{access_token: {written}}}}}}}
nodes:
  box: {{host: local, address: 127.0.0.1, nic: lo}}
defaults:
  env:
    HF_TOKEN: {written}
    SITE_PASSWORD: "${{NOBODY:-{written}}}"
    STORE: "http://ann:{written}@store.example/x"
    http_proxy: "http://ann:{written}@gate:3128"
    AWS_SECRET_ACCESS_KEY: {{prepend: {written}}}
    OTHER: "token={written}"
    OPENAI_API_KEY: {{from_env: SITE_KEY}}
  args:
    api-key: {{file: {folder}/key}}
    hf-token: {written}
    ssl-keyfile-password: {written}
    model-loader-extra-config: {{"s3": {{"secret": "{written}", "url": "s3://ann:{written}@store/x"}}}}
    additional-config: '{{"refresh": true, "dump_config": {{"api_key": "{written}"}}}}'
groups:
  p: {{role: prefill, nodes: [box], devices: [0], dp_size: 1, api_port: {ports[0]}, kv_port: 14000}}
  d: {{role: decode, nodes: [box], devices: [1], dp_size: 1, api_port: {ports[1]}, kv_port: 14100}}
"""

SERVER = """#!{python}
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=b"{{}}"):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        known = self.headers.get("Authorization") == "Bearer " + os.environ["VLLM_API_KEY"]
        self.answer(*(200, b'{{"usage": {{"prompt_tokens": 1}}}}') if known else (401,))
    def log_message(self, *words):
        pass
port = int(sys.argv[sys.argv.index("--port") + 1])
print("Application startup complete.", flush=True)
http.server.HTTPServer(("0.0.0.0", port), Handler).serve_forever()
"""

ENV = ("HF_TOKEN", "SITE_PASSWORD", "STORE", "http_proxy", "OTHER", "AWS_SECRET_ACCESS_KEY")

ON_THE_NODE = {"script", "start.json", "record.json"}
"""What a rank runs from on its node, for its user only: there a secret stands that stands in the file."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "key").write_text(f"{REFERRED}\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    server = tmp_path / "bin" / "vllm"
    server.write_text(SERVER.format(python=sys.executable))
    server.chmod(0o755)
    (tmp_path / "setup.sh").write_text(f"export PATH={tmp_path}/bin:$PATH SITE_KEY={REFERRED}\n")
    text = FILE.format(name=f"keys-{os.getpid()}", folder=tmp_path, written=WRITTEN, ports=free_ports(2))
    (tmp_path / "a.yaml").write_text(text)
    changes = ("HF_TOKEN: c4", "HF_TOKEN: zc4"), ("api-key: {file", "seed: 1\n    api-key: {file"), ("e/x", "e/y")
    for old, new in changes:
        text = text.replace(old, new)
    (tmp_path / "b.yaml").write_text(text)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def said(folder: Path, *words: str, status: int | None = None) -> str:
    """Run a command and return what it prints, which has no secret."""
    done = pdtui(*words, cwd=folder)
    assert status is None or done.returncode == status, done.stdout + done.stderr
    for secret in (WRITTEN, REFERRED):
        assert secret not in done.stdout + done.stderr, words
    return done.stdout


def test_nothing_that_is_printed_or_rendered_has_a_secret(folder: Path) -> None:
    found = json.loads(said(folder, "check", "a.yaml", "--json"))["findings"]
    places = {finding["path"] for finding in found if finding["rule"] == "V13"}
    assert places == {
        "runtime.options.1",
        "runtime.options.2",
        "kv.extra.store",
        *(f"defaults.env.{name}" for name in ENV),
        *(f"defaults.args.{name}" for name in ("hf-token", "ssl-keyfile-password", "model-loader-extra-config")),
        "defaults.args.additional-config",
    }
    said(folder, "check", "a.yaml")
    for options in ([], ["--commands"], ["--json"], ["--rank", "p/0"], ["--ports"]):
        said(folder, "plan", "a.yaml", *options, status=0)
    assert "${SITE_KEY}" in said(folder, "plan", "a.yaml", "--rank", "d/0")
    for options in ([], ["--json"]):
        assert "HF_TOKEN" in said(folder, "diff", "a.yaml", "b.yaml", *options)
    said(folder, "render", "a.yaml", "-o", "out", status=0)
    rendered = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert any(f"{folder}/key" in path.read_text() for path in rendered)
    assert not with_secret(rendered)


def with_secret(paths: list[Path], *secrets: str) -> list[Path]:
    """Return the files that hold a secret."""
    wanted = [secret.encode() for secret in secrets or (WRITTEN, REFERRED)]
    return [path for path in paths if any(secret in path.read_bytes() for secret in wanted)]


def test_ranks_run_with_their_secrets_and_only_their_own_script_and_record_have_them(folder: Path) -> None:
    said(folder, "start", "a.yaml", "all", "--dry-run")
    try:
        started = said(folder, "start", "a.yaml", "--json", status=0)
        assert "not warmed up" not in started  # The server asks for the key, and its agent has it from the server.
        for words in (
            ["status", "a.yaml", "--json"],
            ["diff", "b.yaml", "running"],
        ):
            said(folder, *words)
    finally:
        pdtui("stop", "a.yaml", "all", "--grace", "2", cwd=folder)
    said(folder, "journal", "a.yaml")
    (record, *_) = (folder / "state").rglob("record.json")
    assert json.loads(record.read_text())["env"]["VLLM_API_KEY"] == f"$(<{folder}/key)"
    places = (folder / "state", folder / "xdg", folder / "home")
    written = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert {path.name for path in written} > ON_THE_NODE
    assert {path.name for path in with_secret(written)} == ON_THE_NODE
    assert not with_secret(written, REFERRED)
    assert all(path.stat().st_mode & 0o077 == 0 for path in with_secret(written))
