"""Recorded results: the store on disk, the table in memory, packed files, job locks and partial runs."""
