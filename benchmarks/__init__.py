"""Scripts behind every measured claim; each prints a table."""

import os

# Before torch is loaded: a thread that waits for another must sleep, or its waiting counts as processor time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
