"""`pdtui doctor`, a module a subject; what each needs is imported when it is looked at."""

from pdtui.cli.doctor.report import command

__all__ = ["command"]
