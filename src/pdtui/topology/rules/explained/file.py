"""The file itself (F)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

_HERE = "pdtui: the shape of a topology file (`pdtui schema`)"

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "F02",
            "The file is YAML",
            "Nothing can be read behind the place where the text stops being YAML.",
            "Put the value in quotes or mend the indentation at the place that is named.",
            "YAML 1.2",
        ),
        Explanation(
            "F03",
            "Nothing is said twice",
            "Of two equal keys, or two spellings of one flag, only one would count, and not always the same one.",
            "Keep one of them.",
            _HERE,
        ),
        Explanation(
            "F04",
            "Every key is known",
            "A misspelt key would be ignored in silence, and the default would run.",
            "Write the key that is proposed, or delete the line.",
            _HERE,
        ),
        Explanation(
            "F05",
            "Nothing that is needed is missing",
            "Without it no plan can be made.",
            "Add the key; the message says what belongs there.",
            _HERE,
        ),
        Explanation(
            "F06",
            "Every value is of its kind and means what it seems to mean",
            "A value of the wrong kind is passed on as something else: `yes` as text, ~/ as a folder named ~.",
            "Write the value as the message says.",
            _HERE,
            (Severity.ERROR, Severity.WARNING),
        ),
        Explanation(
            "F07",
            "Names can be used as targets",
            "Commands take names of nodes and groups as targets; a word of two meanings would hit the wrong one.",
            "Choose another name: a-z, 0-9 and `-`, unlike every other name and the words all, failed, proxy.",
            _HERE,
        ),
        Explanation(
            "F08",
            "Names that are referred to exist",
            "A group cannot run on a node that the file does not describe.",
            "Correct the name, or add the node.",
            _HERE,
        ),
        Explanation(
            "F09",
            "Nothing is asked for that pdtui cannot do yet",
            "It would be read and have no effect.",
            "The message says what works instead.",
            "README",
            (Severity.ERROR, Severity.INFO),
        ),
        Explanation(
            "F11",
            "Nothing is written that follows from the rest of the file",
            "The same number in two places is how they come to disagree.",
            "Delete the line; the value is derived.",
            "the seven positional arguments of run_dp_template.sh; pdtui: derived values",
            (Severity.ERROR, Severity.INFO),
        ),
        Explanation(
            "F12",
            "`accept` names findings that there are, and no errors",
            "An acceptance that accepts nothing may hide the next finding of that rule.",
            "Delete the line.",
            _HERE,
            (Severity.WARNING,),
        ),
    )
)
