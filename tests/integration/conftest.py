from __future__ import annotations

from tests.integration.client_faces import patient_starts

__all__ = ["patient_starts"]
