"""Loads the fixtures, which are verbs, as plugins."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile(
    "here",
    deadline=None,  # machines are noisy; speed is measured in bench/
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("here")

pytest_plugins = ["fixtures.lake", "fixtures.s3", "fixtures.wal"]
