"""`pdtui schema`: the JSON Schema of the topology file, for editors."""

from __future__ import annotations

import click

from pdtui.cli.output import print_json
from pdtui.topology.schema import json_schema


@click.command("schema")
def command() -> int:
    """Print the JSON Schema of the topology file.

    Editors with a YAML language server use it when the file begins with
    `# yaml-language-server: $schema=PATH`.
    """
    print_json(json_schema())
    return 0
