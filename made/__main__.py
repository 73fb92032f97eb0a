"""`python -m made`: the command line."""

import sys

from made.cli import main

sys.exit(main())
