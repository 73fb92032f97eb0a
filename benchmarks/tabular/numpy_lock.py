"""A straightforward NumPy loop of value iteration with MADE on the lock: what the compiled study is compared with.

It is the same algorithm, written as one would write it down: one episode at a time, one lock at a time.
"""

from collections import deque

import numpy as np


class Explorer:
    """Value iteration with the bonus 1/sqrt(N B) on one MDP given as arrays."""

    def __init__(self, n_states: int, n_actions: int, window: int, gamma: float, sweeps: int):
        self.gamma, self.sweeps = gamma, sweeps
        self.pairs = np.zeros((n_states, n_actions))
        self.triples = np.zeros((n_states, n_actions, n_states))
        self.rewards = np.zeros((n_states, n_actions))
        self.recent: deque[tuple[int, int]] = deque(maxlen=window)
        self.recent_counts = np.zeros((n_states, n_actions))
        self.q = np.ones((n_states, n_actions))

    def act(self, s: int, rng: np.random.Generator) -> int:
        """A best action, drawn evenly among ties."""
        best = np.flatnonzero(self.q[s] >= self.q[s].max() - 1e-7)
        return int(rng.choice(best))

    def see(self, s: int, a: int, r: float, s_next: int, over: bool) -> None:
        """Count one step."""
        self.pairs[s, a] += 1
        self.triples[s, a, s_next] += not over
        self.rewards[s, a] += r
        if len(self.recent) == self.recent.maxlen:
            self.recent_counts[self.recent[0]] -= 1
        self.recent.append((s, a))
        self.recent_counts[s, a] += 1

    def plan(self) -> None:
        """Value iteration on the empirical model with r + 1/sqrt(N B)."""
        n = np.maximum(self.pairs, 1)
        bonus = 1 / np.sqrt(n * np.maximum(self.recent_counts, 1))
        P, r_k = self.triples / n[..., None], self.rewards / n + bonus
        for _ in range(self.sweeps):
            q = np.minimum(r_k + self.gamma * P @ self.q.max(-1), 1.0)
            self.q = np.minimum(np.where(self.pairs > 0, q, 1.0), self.q)


def explore(P, r, rho, absorbing, horizon: int, episodes: int, explorer: Explorer, rng) -> np.ndarray:
    """Returns of all episodes."""
    returns = np.zeros(episodes)
    for episode in range(episodes):
        s = int(rng.choice(len(rho), p=rho))
        for _ in range(horizon):
            a = explorer.act(s, rng)
            s_next = int(rng.choice(len(rho), p=P[s, a]))
            explorer.see(s, a, r[s, a], s_next, bool(absorbing[s_next]))
            returns[episode] += r[s, a]
            s = s_next
            if absorbing[s]:
                break
        explorer.plan()
    return returns


def replay(transitions, explorer: Explorer) -> np.ndarray:
    """Q after each recorded episode, the environment's part played by the record: [K, S, A]."""
    history = []
    for episode in zip(*transitions, strict=True):
        for step in zip(*episode, strict=True):
            explorer.see(*step)
        explorer.plan()
        history.append(explorer.q)
    return np.stack(history)
