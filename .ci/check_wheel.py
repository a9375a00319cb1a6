"""Run by the Python of an environment that holds only the wheel: themes and samples load, commands answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pdtui.assets import asset_dir
from pdtui.console.themes import load_themes

pdtui = str(Path(sys.executable).parent / "pdtui")
samples = sorted(asset_dir("sample_configs").glob("*.yaml"))
themes = sorted(asset_dir("themes").glob("*.toml"))
assert samples, asset_dir("sample_configs")
assert themes, asset_dir("themes")
assert "site-packages" in str(samples[0]), samples[0]
for sample in samples:
    done = subprocess.run([pdtui, "check", "--json", str(sample)], capture_output=True, text=True, check=False)
    errors = [f for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"]
    assert done.returncode == 0, (sample, errors, done.stderr)
loaded = load_themes()
assert len(loaded.themes) == len(themes), loaded.problems
assert not loaded.problems, loaded.problems
print(f"wheel: {len(samples)} samples, {len(themes)} themes")
