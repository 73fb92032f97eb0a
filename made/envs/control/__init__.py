"""The DeepMind Control suite from pixels or states: its tasks, three sparse ones, and processes to run them.

Nothing here imports dm_control before a task is made, so tables and settings can be read where it is not installed.

>>> make_control("quadruped_run").repeat
4
"""

from made.envs.control.tasks import CONTROL, EPISODE, Control, make_control

__all__ = ["CONTROL", "EPISODE", "Control", "make_control"]
