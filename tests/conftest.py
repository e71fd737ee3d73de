"""Loads the fixtures, which are verbs, as plugins."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "here",
    deadline=None,  # machines are noisy; speed is measured in bench/
    derandomize=not os.environ.get("THERMOCLINE_TEST_RANDOM"),  # a run can be repeated
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("here")

pytest_plugins = ["fixtures.lake", "fixtures.s3", "fixtures.wal"]
