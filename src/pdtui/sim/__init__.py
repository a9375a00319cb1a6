"""A simulated cluster of real processes: nodes, vendor tools, a vLLM stand-in, faults."""
