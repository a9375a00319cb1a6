"""A stand-in for `vllm serve` of vllm-ascend: standard library only, loaded on its own by the nodes' `vllm` command.

Everything that it does follows from its own argv and environment; nothing here may import from the rest of
pdtui. One rank is an API server process, which forks EngineCore, which forks the workers.
"""
