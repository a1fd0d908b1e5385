# SPDX-License-Identifier: BSD-3-Clause
import sys

from torchalgo_cli import main

sys.exit(main())
