"""Agents for tabular MDPs: value iteration, policy optimization on a learned model, Q-learning."""
