"""A run on a full disk stops with one line, and resumes bit-exactly when there is room."""

import pytest

from tests.reliability import full_disk


@pytest.mark.reliability
def test_resume_is_bit_exact_after_a_full_disk(check):
    check("disk", full_disk.disk_both_ways)
