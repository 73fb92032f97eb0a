"""`python -m made`: the command line."""

import sys

from made.cli.main import main

sys.exit(main())
