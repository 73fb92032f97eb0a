"""Recorded results: the store on disk, the table in memory, estimates with intervals, and pictures."""

from made.experiments.statistics import CensoredTimes as CensoredTimes
from made.experiments.statistics import Interval as Interval
from made.experiments.statistics import interval as interval
from made.experiments.statistics import iqm as iqm
from made.experiments.statistics import mean as mean
from made.experiments.statistics import median as median
from made.experiments.statistics import paired_interval as paired_interval
from made.experiments.statistics import probability_of_improvement as probability_of_improvement
from made.experiments.statistics import stratified_interval as stratified_interval
from made.experiments.statistics import time_to_threshold as time_to_threshold
from made.experiments.store.store import Job as Job
from made.experiments.store.store import RunExists as RunExists
from made.experiments.store.store import Scale as Scale
from made.experiments.store.store import Store as Store
from made.experiments.store.table import Record as Record
from made.experiments.store.table import Table as Table
