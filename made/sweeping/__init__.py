"""`made sweep`: the jobs of a study by name, sent to threads, processes, a Ray cluster or SLURM, into one store.

`task` says what is sent (names, as JSON), `worker` does it, a back end (`here`, `pool`, `cluster`, `slurm`) carries it
there and the answer back, `drive` sends again what was lost with its worker, and `summary` tells how it stands.
"""
