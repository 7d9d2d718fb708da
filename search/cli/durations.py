"""Durations on the command line: 90s, 9m, 1h30m, or a bare number of seconds."""

from __future__ import annotations

import re

from recallmap.search.cli.app import refuse

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}

_DURATION = re.compile("(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?", re.ASCII)


def seconds_in(text: str, option: str) -> int:
    """The seconds of a duration, at least 1. Refuses anything else, and names the option that it was given to."""
    found = _DURATION.fullmatch(f"{text}s" if re.fullmatch("[0-9]{1,6}", text) else text)
    seconds = (
        sum(int(count) * unit for count, unit in zip(found.groups("0"), _UNITS.values(), strict=True)) if found else 0
    )
    if seconds < 1:
        refuse(f"{option}: got {text[:60]!r}, expected a time of at least 1s, such as 90s, 9m, 1h30m or 90 (seconds)")
    return seconds
