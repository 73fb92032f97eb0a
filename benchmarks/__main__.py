"""`python -m benchmarks`: list the benchmarks."""

from benchmarks.common import BENCHMARKS

if __name__ == "__main__":
    for name, benchmark in BENCHMARKS.items():
        print(f"python -m benchmarks.{name:10} {benchmark.summary}")
