"""When a cohort should go on with fewer members, for which a GPU's step is captured anew."""

from __future__ import annotations


class Fewer:
    """Whether to go on with fewer, asked at every evaluation of a cohort that begins with so many members.

    Members may end long before the steps that are left, so that nobody knows what fewer would save: they are worth a capture
    once those that are through, and still in the step, have cost as much as one: the rule of who rents until the rent has cost
    what buying would. A step's time is taken to grow with its members.
    """

    def __init__(self, members: int) -> None:
        self._members = members  # in the step
        self._going = members  # of them, those that still train
        self._training = 0.0  # seconds, at the last call
        self._preparing = 0.0  # seconds, until the step in use was asked for
        self._idle = 0.0  # seconds that members cost that were through, since that step was captured

    def pays(self, going: int, *, taken: int, left: int, training: float, preparing: float) -> bool:
        """True where the `going` members alone should go on, which are the members from then on.

        taken, left          steps since the cohort began, and those of the member that may train longest
        training, preparing  seconds since then: of steps, and of what was done to capture them (0 where nothing is captured)
        """
        self._idle += (training - self._training) * (1 - self._going / self._members)
        self._training, self._going = training, going
        if not 0 < going < self._members:
            return False
        if preparing:
            saved = left * training / taken * (1 - going / self._members)
            if min(self._idle, saved) <= preparing - self._preparing:
                return False
        self._members, self._preparing, self._idle = going, preparing, 0.0
        return True
