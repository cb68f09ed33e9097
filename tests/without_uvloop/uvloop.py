"""Stand in for uvloop where tests are to run on asyncio's own loop, also in processes they start.

PYTHONPATH=tests/without_uvloop .venv/bin/python -m pytest tests/integration/test_client_scenarios.py
"""

raise ImportError("tests/without_uvloop is on the path, so that asyncio's own loop is used")
