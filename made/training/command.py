"""`made train`: what is asked for, checked, run, and where it went."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

Settings = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


@dataclasses.dataclass
class Train:
    """Train an agent with a bonus. The same command on a folder with an unfinished run goes on with it."""

    env: str  # a MiniGrid id, in full or as in KeyCorridorS4R3, or a tabular task
    agent: str = "impala"
    bonus: str = "made"
    steps: str = "10M"  # frames of each seed; rounded up to whole updates
    seeds: int = 1  # seeds 0 to N-1, side by side in one program
    tau: float | None = None  # the temperature of the bonus: 0.01, or 1 with --strength
    gated: bool = False  # pay at the first visit of a state in an episode only
    strength: float | None = None  # scale the bonus so that an episode of full length earns this much of it
    set: Settings = ()  # path=value, such as agent.learning_rate=3e-4 or n_envs=64; may be given several times
    out: Path | None = None  # the folder of the run; training/<env>-<agent>-<bonus> unless given
    every: str = "50k"  # frames between two rows of metrics.jsonl
    eval_every: str = "500k"  # frames between two evaluations on levels never trained on
    checkpoint_every: str = "500k"  # frames between two checkpoints
    devices: int = 1  # seeds are spread over them, then environments
    tensorboard: bool = False  # also write TensorBoard logs
    wandb: str | None = None  # also log to this W&B project
    film: bool = True  # a film of the agent and a map of its visits at the end

    def main(self) -> int:
        from made.training import folder, session, writers

        for name in ("tensorboard", "wandb"):
            if getattr(self, name):
                writers.extra(name)
        paid = f"{self.bonus}{'-gated' * self.gated}"
        plan, out = self.plan(), self.out or Path("training") / f"{self.env}-{self.agent}-{paid}"
        folder.held(out, plan.configuration)  # what is wrong is told before a minute of compiling
        _say(f"compiling for {self.seeds} seed{'s' * (self.seeds > 1)} ...")
        programs = session.prepare(plan, self.devices)
        with folder.claimed(out):
            held = folder.held(out, plan.configuration)
            stand = session.stand_of(plan, programs, out)
            if stand.update < plan.run.iterations:
                stand = self._train(plan, programs, stand, out, held)
            else:
                _say(f"{out} holds this run, finished; a larger --steps goes on with it.")
            if self.film:
                self._film(plan, stand, out)
        print(f"{stand.update * plan.frames_per_update:,} frames of each seed; all of it is in {out}.")
        return 0

    def plan(self):
        """What the options say, checked."""
        from made.training import plan

        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}.")
        run = plan.build_run(self.env, self.agent, self.bonus, self.gated, self.tau, self.strength, self.set)
        per_update = run.n_envs * run.unroll
        options = {"steps": self.steps, "every": self.every, "eval": self.eval_every, "check": self.checkpoint_every}
        flags = {"eval": "--eval-every", "check": "--checkpoint-every"}
        frames = {name: plan.amount(text, flags.get(name, f"--{name}")) for name, text in options.items()}
        counts = {name: plan.updates(n, per_update) for name, n in frames.items()}
        if counts["steps"] * per_update != frames["steps"]:
            _say(
                f"an update takes {per_update:,} frames, so {frames['steps']:,} steps are rounded up to "
                f"{counts['steps'] * per_update:,}."
            )
        run = dataclasses.replace(run, iterations=counts["steps"], every=counts["every"])
        return plan.Plan(run, tuple(range(self.seeds)), counts["eval"], counts["check"])

    def _train(self, plan, programs, stand, out: Path, held):
        from made.training import session, writers
        from made.training.folder import METRICS
        from made.training.panel import Panel

        frames = stand.update * plan.frames_per_update
        if stand.update:
            _say(f"going on with {out} from frame {frames:,}.")
        session.note_session(plan, out, held, self.words(), stand.update)
        taking: list[writers.Writer] = [writers.JSONL(out / METRICS)]
        try:
            if self.tensorboard:
                taking.append(writers.TensorBoard(out / "tensorboard", plan.seeds, frames))
            if self.wandb:
                taking.append(writers.WandB(self.wandb, out.name, out, plan.configuration))
            panel = Panel(plan.run.iterations * plan.frames_per_update, len(plan.seeds), frames)
            with panel.shown():
                return session.train(plan, programs, stand, out, taking, panel.row)
        finally:
            for writer in taking:
                writer.close()

    def _film(self, plan, stand, out: Path) -> None:
        from made.training import film

        for path in film.pictures(plan, stand.state, out):
            print(f"drawn: {path}")

    def words(self) -> str:
        """The command that asks for this run, without what is at its default and without the folder."""
        said = ["made train"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "out" or value == field.default:
                continue
            flag = f"--{field.name.replace('_', '-')}"
            if isinstance(value, bool):
                said.append(flag if value else f"--no-{field.name}")
            else:
                said += [f"{flag} {one}" for one in (value if isinstance(value, tuple) else (value,))]
        return " ".join(said)


def _say(text: str) -> None:
    print(f"made: {text}", file=sys.stderr, flush=True)
