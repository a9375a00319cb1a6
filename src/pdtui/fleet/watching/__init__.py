"""Watching a cluster without a screen: what changes is told, written down, handed to a program, and counted."""
