"""Reaching nodes: transports, the agent and its RPC, the keeper, tunnels."""
