import sys

from benchmarks.common import main

if __name__ == "__main__":
    sys.exit(main("control"))
