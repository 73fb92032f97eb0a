"""Commands that look: what there is, where it is in the paper, how fast it is, what is missing, how a grid feels."""

import dataclasses
import json
import shutil
import sys
import textwrap
from typing import Annotated

import tyro

from made.training.command import Flag


@dataclasses.dataclass
class List:
    """What there is: experiments, bonuses, agents, tasks, benchmarks, one line each."""

    kind: Annotated[str | None, tyro.conf.Positional] = None  # one of these alone, such as bonuses
    json: Flag = False  # in a stable form for programs

    def main(self) -> int:
        from made import listing

        kinds = listing.everything()
        if self.kind is not None:
            from made.describe import suggest

            if self.kind not in kinds:
                raise ValueError(f"There are no {self.kind!r} to list.{suggest(self.kind, list(kinds))} See: made list")
            kinds = {self.kind: kinds[self.kind]}
        if self.json:
            print(json.dumps({kind: list(entries) for kind, entries in kinds.items()}, indent=1))
            return 0
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # whole where it is piped on
        for kind, entries in kinds.items():
            print(f"{kind}:")
            width = max(map(len, entries), default=0)
            for name, line in entries.items():
                print(f"  {name:{width}}  {line}"[:room])
        return 0


@dataclasses.dataclass
class Map:
    """Where an equation, algorithm, theorem, lemma or figure of the paper is in the code."""

    label: Annotated[str | None, tyro.conf.Positional] = None  # such as eq:bonus_design; every row unless given

    def main(self) -> int:
        from made import papermap

        if self.label is None:
            for row in papermap.rows():
                print(f"{row.label:32} {row.item:28} {row.code}  [{row.status}]")
            return 0
        for name, text in papermap.row(self.label)._asdict().items():
            print(f"{name:7} {text}")
        return 0


@dataclasses.dataclass
class Bench:
    """Measure speed and memory, side by side with the alternatives, as ratios."""

    name: Annotated[str | None, tyro.conf.Positional] = None  # such as grids or dreamer (see made list); else all
    json: Flag = False  # in a stable form for programs

    def main(self) -> int:
        from made import bench

        printed = 0

        def tell(row: bench.Measure) -> None:
            nonlocal printed
            print(f"{row.name}: {row.value:,.4g} {row.unit}", file=sys.stderr, flush=True)
            if self.json:  # each row as it comes, so that a benchmark that is cut short keeps its rows
                item = textwrap.indent(json.dumps(row._asdict(), indent=1), " ")
                print(f"{',' if printed else '['}\n{item}", end="", flush=True)
                printed += 1

        try:
            measured = bench.run(self.name, tell)
        finally:
            if self.json and printed:
                print("\n]", flush=True)
        if not self.json:
            print(bench.as_text(measured))
        elif not measured:
            print("[]")
        return 0


@dataclasses.dataclass
class Doctor:
    """What is installed, what is missing, which known clashes there are, each with its fix."""

    def main(self) -> int:
        from made import doctor

        findings = doctor.examine()
        for finding in findings:
            print(f"{finding.state:8} {finding.what}" + (f"\n{'':9}fix: {finding.fix}" if finding.fix else ""))
        return int(any(finding.state == "wrong" for finding in findings))


@dataclasses.dataclass
class Play:
    """Walk a grid in the terminal: a, d turn; w goes; p picks up; t toggles; q quits."""

    task: Annotated[str, tyro.conf.Positional]  # a MiniGrid id, in full or as in KeyCorridorS3R3
    seed: int = 0
    keys: str | None = None  # these keys instead of the keyboard's

    def main(self) -> int:
        from made.grids.play import play

        return play(self.task, self.seed, self.keys)
