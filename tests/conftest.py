"""What holds for all tests."""

from __future__ import annotations

import os

# A result of another run must not stand in for one that a test is about; tests of the
# cache turn it on with a folder of their own.
os.environ["MNNQNN_CACHE"] = "off"
