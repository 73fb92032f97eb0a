"""Bonuses by name: one table, with a preset for each setting."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from made.bonuses.amigo import AMIGo
from made.bonuses.combinators import FirstVisit, Normalized
from made.bonuses.count import Bernstein, Count, NoBonus
from made.bonuses.disagreement import Disagreement
from made.bonuses.e3b import E3B
from made.bonuses.hashed_count import HashedCount
from made.bonuses.icm import ICM
from made.bonuses.made import MADE, CoverAtMadeScale
from made.bonuses.ngu import NGU
from made.bonuses.noveld import NovelD
from made.bonuses.re3 import RE3
from made.bonuses.release import OrthogonalRND, Re3ReleaseNormalized, ReleasedRND, ReleasedVAE, made_released
from made.bonuses.replay_data import CachedRND, FromBatch, LastFrame
from made.bonuses.ride import RIDE
from made.bonuses.rnd import RND
from made.core import Bonus
from made.core.plugins import Registry
from made.nets.fit import Fit

Setting = Literal["on_policy", "off_policy", "dreamer"]
BATCH = 2500  # steps of a batch of Dreamer: 50 windows of 50
RE3_MEMORY = 100_000  # steps among which RE3 looks for neighbors: the release's replay
DREAMER_WINDOW = 1000  # steps of the recent density: two episodes of 1000 frames at repeat 2, as in the release
CONTROL_RE3 = RE3(embedding=50, capacity=RE3_MEMORY, released=True)
# Dreamer's covers are trained on the whole batch that it learns from, as in the release.
_COVER_FIT, _VAE_FIT = Fit(learning_rate=6e-4, clip=100.0), Fit(learning_rate=1e-3, clip=100.0, steps=4, batch=128)
DREAMER_RND = Normalized(ReleasedRND(_COVER_FIT))
DREAMER_MADE = MADE.deep(DREAMER_WINDOW, cover=DREAMER_RND)
_RECENT = ReleasedVAE(DREAMER_WINDOW, fit=_VAE_FIT, capacity=DREAMER_WINDOW)
DREAMER_RELEASED = made_released("none", cover=OrthogonalRND(_COVER_FIT), density=_RECENT)
_WHERE = {"on_policy": "", "off_policy": " for control", "dreamer": " for Dreamer"}


def control_rnd(pixels: bool, kind: type[ReleasedRND] = ReleasedRND) -> Bonus:
    """The cover of the release, trained on the whole batch that the agent learns from; features of images are kept."""
    rnd = kind(Fit(learning_rate=2e-4, clip=1e9))
    return CachedRND(rnd) if pixels else rnd


def control_released(pixels: bool) -> MADE:
    return made_released(cover=control_rnd(pixels, OrthogonalRND))


def control_made(pixels: bool) -> MADE:
    """The deep reward. Entries of a vector have scales of their own; of images the cover is that of "rnd", whose errors
    on fixed features are small and are brought to a known scale, as the release's factor is.
    """
    return MADE.deep(cover=Normalized(control_rnd(pixels)) if pixels else RND(normalize=True))


def dreamer_re3(steps: int) -> FromBatch:
    """RE3 whose neighbors are the batch itself, of so many steps."""
    return FromBatch(RE3(embedding=50, k=50, capacity=steps, on="next_obs", released=True))


class Presets(NamedTuple):
    """What a name stands for in each setting; None where it has no preset."""

    on_policy: Callable[[], Bonus] | None = None  # rollouts of grids and tables
    off_policy: Callable[[bool], Bonus] | None = None  # SAC and RAD: from pixels or not
    dreamer: Callable[[int], Bonus] | None = None  # Dreamer on control tasks: steps of a batch


# To add a bonus, write a file in this folder and a line here.
_TABLE: dict[str, Presets] = {
    "none": Presets(NoBonus, lambda pixels: NoBonus(), lambda steps: NoBonus()),
    "hoeffding": Presets(lambda: Count(power=0.5)),
    "inverse": Presets(lambda: Count(power=1.0)),
    "bernstein": Presets(Bernstein),
    "made": Presets(MADE.deep, control_made, lambda steps: DREAMER_MADE),
    "made-counts": Presets(MADE.hashed),
    "made-released": Presets(made_released, control_released, lambda steps: DREAMER_RELEASED),
    "made-tabular": Presets(MADE.tabular),
    "made-geometric": Presets(MADE.geometric),
    "rnd": Presets(RND, lambda pixels: Normalized(control_rnd(pixels)), lambda steps: DREAMER_RND),
    "icm": Presets(ICM, lambda pixels: ICM(fit=Fit(learning_rate=2e-4))),
    "ride": Presets(RIDE),
    "noveld": Presets(NovelD),
    "bebold": Presets(lambda: NovelD(alpha=1.0)),
    "amigo": Presets(AMIGo),
    "re3": Presets(RE3, lambda pixels: Normalized(CONTROL_RE3), lambda steps: Normalized(dreamer_re3(steps))),
    "re3-released": Presets(
        off_policy=lambda pixels: Re3ReleaseNormalized(CONTROL_RE3),
        dreamer=lambda steps: Re3ReleaseNormalized(dreamer_re3(steps)),
    ),
    "e3b": Presets(E3B),
    "ngu": Presets(NGU),
    "disagreement": Presets(Disagreement),
    "hashed": Presets(HashedCount),
    "first-visit": Presets(FirstVisit),
    "rnd-at-made": Presets(
        off_policy=lambda pixels: CoverAtMadeScale(control_released(pixels)),
        dreamer=lambda steps: CoverAtMadeScale(DREAMER_RELEASED),
    ),
    "cover-at-made": Presets(
        off_policy=lambda pixels: CoverAtMadeScale(control_made(pixels)),
        dreamer=lambda steps: CoverAtMadeScale(DREAMER_MADE),
    ),
}
_REGISTRY = Registry("bonus", "made.bonuses", Bonus, _TABLE)


def make_bonus(name: str, setting: Setting = "on_policy", *, pixels: bool = False, steps: int = BATCH) -> Bonus:
    """The bonus of that name, with its settings for agents of that kind.

    Args:
        name: One of `list_bonuses()`, of an installed package (entry points `made.bonuses`), or an import path such
            as "mypackage.mymodule:MyBonus". A bonus from elsewhere is the same in each setting.
        setting: "on_policy" for agents that learn from rollouts and for Dreamer on grids, "off_policy" for SAC and
            RAD, "dreamer" for Dreamer on control tasks.
        pixels: For RAD: the bonus reads the last frame of a stack.
        steps: For Dreamer: steps in a batch.

    >>> make_bonus("made", "off_policy").recent.density.window, make_bonus("made", "dreamer").recent.density.window
    (10000, 1000)
    """
    if setting not in get_args(Setting):
        raise ValueError(f"A setting is one of {', '.join(get_args(Setting))}, not {setting!r}.")
    preset: Any = getattr(_TABLE.get(name), setting, None)
    if preset is None:
        return _REGISTRY.load(name, list_bonuses(setting, installed=False), _WHERE[setting])
    if setting == "off_policy":
        return LastFrame(preset(pixels)) if pixels and name != "none" else preset(pixels)
    return preset() if setting == "on_policy" else preset(steps)


def list_bonuses(setting: Setting | None = None, *, installed: bool = True) -> list[str]:
    """The names that `make_bonus` takes, in that setting or in any; those of installed packages last.

    >>> "made" in list_bonuses("dreamer")
    True
    """
    own = [name for name, presets in _TABLE.items() if setting is None or getattr(presets, setting) is not None]
    return _REGISTRY.names(own) if installed else own
