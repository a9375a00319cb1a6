"""The topology file: loaded, checked, planned."""
