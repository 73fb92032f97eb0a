"""Recorded results: the store on disk, the table in memory, estimates with intervals, and pictures."""

from made.results.bootstrap import Interval as Interval
from made.results.bootstrap import Times as Times
from made.results.bootstrap import interval as interval
from made.results.bootstrap import iqm as iqm
from made.results.bootstrap import mean as mean
from made.results.bootstrap import median as median
from made.results.bootstrap import paired_interval as paired_interval
from made.results.bootstrap import probability_of_improvement as probability_of_improvement
from made.results.bootstrap import stratified_interval as stratified_interval
from made.results.bootstrap import time_to_threshold as time_to_threshold
from made.results.store import Job as Job
from made.results.store import RunExists as RunExists
from made.results.store import Scale as Scale
from made.results.store import Store as Store
from made.results.table import Record as Record
from made.results.table import Table as Table
