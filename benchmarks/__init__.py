"""Speed and memory benchmarks. They run from a checkout: `python -m benchmarks` lists them."""
