"""The PD proxy: flows, balancer, HTTP application, trace, clients."""
