# SPDX-License-Identifier: Apache-2.0
"""Waits for a state. Needs only the standard library."""

import time


def wait_until(condition, seconds=60, pause=0.02):
    """Returns the first true value of `condition()`, or its last value if all are false. It gives up after so many pauses as
    `seconds` have, or later: the limit only ends a wait for what never comes."""
    for _ in range(max(1, round(seconds / pause))):
        if value := condition():
            return value
        time.sleep(pause)
    return condition()
