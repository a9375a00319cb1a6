"""What runs on hosts of which there is no topology file yet: asked read-only, for `pdtui import --from`."""
