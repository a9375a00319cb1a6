"""How a request crosses the roles, one module a flow."""
