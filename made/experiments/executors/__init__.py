"""Where the jobs of `made sweep` run: local processes, Ray or SLURM."""
