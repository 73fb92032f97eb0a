"""The command `made train`."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import tyro

Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]  # an option that may be given several times
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]  # --no-x (default: True) would read as if x were off

_PLACES = ("out", "hosts", "host", "coordinator")  # where a run is, not what it is


def shown(metavar: str, default: str = "") -> Any:
    """How an optional value appears in --help."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})" if default else "")


@dataclasses.dataclass
class Train:
    """Train an agent with an exploration bonus. Run the same command again to resume an unfinished run."""

    # MiniGrid id (long or short, such as DoorKey-5x5), tabular task, control task, gym:ID, envpool:ID or module:Class
    env: Annotated[str, tyro.conf.arg(metavar="ID")]
    # agent name or module:Class; for control tasks sac (states), rad (pixels) or dreamer
    agent: Annotated[str, tyro.conf.arg(metavar="NAME")] = "impala"
    bonus: Annotated[str, tyro.conf.arg(metavar="NAME")] = "made"  # bonus name (see `made list`) or module:Class
    # environment frames per seed, such as 4M
    steps: Annotated[str | None, shown("FRAMES", "10M; control tasks: 500k")] = None
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 1  # number of seeds, trained in parallel
    # bonus coefficient
    bonus_coef: Annotated[float | None, shown("X", "0.01; 1.0 with --strength; the paper's on control tasks")] = None
    first_visit: Flag = False  # reward only the first visit of a state in each episode
    # scale the bonus so that a full-length episode gets X in total, in units of the largest return; --bonus-coef
    # multiplies it; 0.4 is a good start on grids
    strength: Annotated[float | None, shown("X")] = None
    # override a setting, such as agent.learning_rate=3e-4 or n_envs=64
    set: Annotated[Several, tyro.conf.arg(metavar="PATH=VALUE")] = ()
    out: Annotated[Path | None, shown("DIR", "training/<env>-<agent>-<bonus>")] = None  # run directory
    every: Annotated[str | None, shown("FRAMES", "50k; control tasks: 2k")] = None  # frames between log records
    # frames between evaluations on unseen levels
    eval_every: Annotated[str | None, shown("FRAMES", "500k; control tasks: 10k")] = None
    # frames between checkpoints
    checkpoint_every: Annotated[str | None, shown("FRAMES", "500k; control tasks: 50k")] = None
    devices: Annotated[int | None, shown("N", "1; all with --hosts")] = None  # number of devices
    # processes of a distributed run; start each with the same command and its own --host
    hosts: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    host: Annotated[int, tyro.conf.arg(metavar="I")] = 0  # index of this process; process 0 writes the files
    coordinator: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = "127.0.0.1:9911"  # address of process 0
    tensorboard: Flag = False  # write TensorBoard logs
    wandb: Annotated[str | None, shown("PROJECT")] = None  # log to this Weights & Biases project
    video: Flag = True  # skip the video and the map of visits at the end

    def main(self) -> int:
        import jax

        from made.training import loggers, train_run

        for name in ("tensorboard", "wandb"):
            if getattr(self, name):
                loggers.extra(name)
        paid = f"{self.bonus}{'-gated' * self.first_visit}"
        name = f"{self.env}-{self.agent}-{paid}".replace(":", "-").replace("/", "-")
        out = self.out or Path("training") / name
        with self._processes():
            plan = self.plan()
            train_state = train_run.run_plan(plan, out, self.devices, self._session(plan, out))
            if jax.process_index() == 0:
                self._finish(plan, train_state, out)
        return 0

    def _processes(self) -> contextlib.AbstractContextManager:
        """The other processes of a distributed run, which must be joined before anything is computed."""
        from made.training import sharding

        if self.hosts == 1 and not self.host:
            return contextlib.nullcontext()
        return sharding.join_processes(self.hosts, self.host, self.coordinator)

    def _session(self, plan, out: Path):
        from made.training import loggers, train_run

        def more(frames: int) -> Iterator[loggers.Writer]:
            if self.tensorboard:
                yield loggers.TensorBoard(out / "tensorboard", plan.seeds, frames)
            if self.wandb:
                yield loggers.WandB(self.wandb, out.name, out, plan.configuration)

        frames = train_run.default_frames(plan.run)["steps"] if self.steps is None else self.steps
        steps = train_run.parse_frames(frames, "--steps")
        return train_run.Session(self.words(), self.options, more, report=_say, steps=steps)

    def plan(self):
        """The validated options."""
        from made.cli.build import build
        from made.training.train_run import default_frames, plan_of, updates_for

        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}.")
        run = build(self.env, self.agent, self.bonus, self.first_visit, self.bonus_coef, self.strength, self.set)
        default = default_frames(run)
        steps, every = (default[x] if (y := getattr(self, x)) is None else y for x in ("steps", "every"))
        run = dataclasses.replace(run, every=updates_for(run, every, "--every"))
        flag = lambda name: f"--{name.replace('_', '-')}"  # noqa: E731
        return plan_of(run, self.seeds, steps, self.eval_every, self.checkpoint_every, flag)

    def _finish(self, plan, train_state, out: Path) -> None:
        self._curves(out)
        if self.video:
            self._video(plan, train_state, out)
        print(f"{train_state.update * plan.frames_per_update:,} frames per seed, saved in {out}.")

    def _curves(self, out: Path) -> None:
        """Draw the learning curves, where matplotlib is installed and an episode has ended."""
        try:
            from made.cli.plot import draw_curves

            print(f"drawn: {draw_curves((out,), 'return', out / 'curves.png')[0]}")
        except (ImportError, ValueError) as error:
            _say(f"no learning curves were drawn: {error}")

    def _video(self, plan, train_state, out: Path) -> None:
        from made.training import video

        for path in video.record_videos(plan, train_state.state, out):
            print(f"drawn: {path}")

    @property
    def options(self) -> dict[str, Any]:
        """The options as data, without the folder and the other hosts, which may differ when a run is resumed."""
        return {name: x for name, x in dataclasses.asdict(self).items() if name not in _PLACES}

    def words(self) -> str:
        """The command that asks for this run, without what is at its default, the folder and the other hosts."""
        said = ["made train"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _PLACES or value == field.default:
                continue
            flag = f"--{field.name.replace('_', '-')}"
            if isinstance(value, bool):
                said.append(flag if value else f"--no-{field.name}")
            else:
                said += [f"{flag} {one}" for one in (value if isinstance(value, tuple) else (value,))]
        return " ".join(said)


def _say(text: str) -> None:
    print(f"made: {text}", file=sys.stderr, flush=True)
