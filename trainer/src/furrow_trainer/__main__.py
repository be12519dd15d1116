"""`python -m furrow_trainer`."""

import sys

from .command import main

sys.exit(main())
