"""What a vLLM server is to its surroundings: one contract, held by the real one and by the stand-in."""
