from __future__ import annotations

from tests.integration.client_faces import patient_starts
from tests.integration.fixtures import cluster, face, name, namesrv

__all__ = ["cluster", "face", "name", "namesrv", "patient_starts"]
