"""The fault table: real events on real processes, what is shown, and that nothing is left."""
