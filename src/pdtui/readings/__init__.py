"""Text of vendor tools, logs and metrics, turned into typed readings and a verdict."""
