"""``python -m escha_oscar``."""

import sys

from escha_oscar.cli import main

sys.exit(main())
