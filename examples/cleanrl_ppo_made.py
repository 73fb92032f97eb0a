"""Single-file PPO in the style of CleanRL, with an exploration bonus. Lines marked `bonus` are added.

Usage: python examples/cleanrl_ppo_made.py --bonus-coef 0.1  # 0 for PPO alone
"""

import argparse
import random
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import made.adapters.gymnasium  # noqa: F401, registers the environments made/...
from made import MADE, HostBonus  # bonus
from made.bonuses import FirstVisit  # bonus
from made.core.trees import stack  # bonus
from made.envs.host_env import true_successor  # bonus


def options(words: list[str] | None) -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--task", default="made/MiniGrid-MultiRoom-N4-S5-v1")
    flags.add_argument("--total-steps", type=int, default=240_000)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--num-envs", type=int, default=32)
    flags.add_argument("--num-steps", type=int, default=100)
    flags.add_argument("--minibatches", type=int, default=8)
    flags.add_argument("--epochs", type=int, default=4)
    flags.add_argument("--learning-rate", type=float, default=6e-4)
    flags.add_argument("--gamma", type=float, default=0.99)
    flags.add_argument("--gae-lambda", type=float, default=0.95)
    flags.add_argument("--clip", type=float, default=0.2)
    flags.add_argument("--entropy", type=float, default=1e-3)
    flags.add_argument("--bonus-coef", type=float, default=0.1, help="bonus coefficient")  # bonus
    return flags.parse_args(words)


class Agent(nn.Module):
    """An MLP on the one-hot object, color and state of each cell of the view."""

    def __init__(self, n_actions: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(49 * 20, 128), nn.ReLU(), nn.Linear(128, 128), nn.Tanh())
        self.actor, self.critic = nn.Linear(128, n_actions), nn.Linear(128, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, image: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        columns = [nn.functional.one_hot(image[..., i].long(), n) for i, n in enumerate((11, 6, 3))]
        hidden = self.body(torch.cat(columns, -1).flatten(1).float())
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


def advantages(rewards, values, ends, last_value, gamma, lam):
    """Generalized advantage estimation; nothing is bootstrapped past the end of an episode."""
    found, following = torch.zeros_like(rewards), torch.zeros_like(last_value)
    for t in reversed(range(len(rewards))):
        after = last_value if t == len(rewards) - 1 else values[t + 1]
        error = rewards[t] + gamma * after * ~ends[t] - values[t]
        following = error + gamma * lam * following * ~ends[t]
        found[t] = following
    return found


def improve(agent, optimizer, batch, args):
    """Epochs of clipped policy gradient on (images, actions, log probabilities, advantages, returns)."""
    size = len(batch[0]) // args.minibatches
    for _ in range(args.epochs):
        for rows in torch.randperm(len(batch[0])).split(size):
            images, actions, old, advantage, target = (x[rows] for x in batch)
            policy, value = agent(images)
            ratio = (policy.log_prob(actions) - old).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            gain = torch.min(ratio * advantage, ratio.clamp(1 - args.clip, 1 + args.clip) * advantage).mean()
            loss = -gain + 0.5 * (value - target).pow(2).mean() - args.entropy * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main(words: list[str] | None = None) -> list[tuple[int, float, float]]:
    """Rows of (steps, mean extrinsic return of the last 200 episodes, mean bonus)."""
    args = options(words)
    random.seed(args.seed), np.random.seed(args.seed), torch.manual_seed(args.seed)
    envs = gymnasium.make_vec(args.task, args.num_envs, shows=("image", "hash"))
    agent = Agent(envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, eps=1e-5)
    spaces = envs.single_observation_space, envs.single_action_space
    bonus = HostBonus(FirstVisit(MADE.hashed()), *spaces, args.num_envs, args.seed)  # bonus
    obs, _ = envs.reset(seed=args.seed)
    bonus.reset(obs)  # bonus
    total, returns, rows, began = np.zeros(args.num_envs), [], [], time.time()
    shape = args.num_steps, args.num_envs
    while not rows or rows[-1][0] < args.total_steps:
        images, actions = torch.zeros((*shape, 7, 7, 3), dtype=torch.uint8), torch.zeros(shape, dtype=torch.long)
        log_probs, values, rewards = (torch.zeros(shape) for _ in range(3))
        ends, steps = torch.zeros(shape, dtype=torch.bool), []
        for t in range(args.num_steps):
            images[t] = torch.tensor(obs["image"])
            with torch.no_grad():
                policy, values[t] = agent(images[t])
                actions[t] = policy.sample()
                log_probs[t] = policy.log_prob(actions[t])
            after, reward, terminated, truncated, info = envs.step(actions[t].numpy())
            done = terminated | truncated
            successor = true_successor(after, info, done)  # bonus: the true successor, not the reset observation
            steps.append(bonus.observe(obs, actions[t], reward, successor, terminated, truncated, after))  # bonus
            rewards[t], ends[t], obs = torch.tensor(reward), torch.tensor(done), after
            total += reward
            returns.extend(total[done])
            total[done] = 0.0
        batch = stack(steps)  # bonus
        bonus.update(batch)  # bonus
        intrinsic = bonus.reward(batch)  # bonus: a tensor, as the actions are tensors
        rewards += args.bonus_coef * intrinsic  # bonus: added before advantages, so it is discounted
        with torch.no_grad():
            last_value = agent(torch.tensor(obs["image"]))[1]
        advantage = advantages(rewards, values, ends, last_value, args.gamma, args.gae_lambda)
        improve(
            agent,
            optimizer,
            [x.flatten(0, 1) for x in (images, actions, log_probs, advantage, advantage + values)],
            args,
        )
        rows.append(
            (
                (rows[-1][0] if rows else 0) + rewards.numel(),
                float(np.mean(returns[-200:] or [0.0])),
                float(intrinsic.mean()),
            )
        )
        if len(rows) % 10 == 0:
            print("{:>8,} steps  return {:.3f}  bonus {:.4f}".format(*rows[-1]), f" {time.time() - began:.0f} s")
    return rows


if __name__ == "__main__":
    main()
