from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is no reason for a property to fail.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
