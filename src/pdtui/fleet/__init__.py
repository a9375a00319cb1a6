"""The live cluster: snapshot, monitor, supervisor, logs, journal, engine."""
