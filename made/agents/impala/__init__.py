"""IMPALA: an actor-critic with V-trace, for rollouts of compiled environments."""
