"""From a checked topology to the scripts that operators would write by hand. Pure: text out, no files."""
