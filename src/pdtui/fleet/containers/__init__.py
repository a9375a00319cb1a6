"""Containers of ranks: made, stopped and made anew on the nodes, and how they differ from what the file says."""
