"""Fixtures every test may use."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with golden/ and data/, named by BEAMBERT_TEST_DATA; the test is skipped where it is unset."""
    folder = os.environ.get("BEAMBERT_TEST_DATA")
    if not folder:
        pytest.skip("BEAMBERT_TEST_DATA is not set: real corpora are not at hand")
    path = Path(folder)
    assert (path / "golden").is_dir(), f"BEAMBERT_TEST_DATA={folder} has no golden/"
    return path
