# SPDX-License-Identifier: BSD-3-Clause
"""The call overhead: the time that each call of an op takes besides its kernel."""

from torchalgo._ir.costs import TICKS_PER_NS

# The call overhead inside a net, which timing a kernel does not include: the interpreter, the
# dispatcher, the result's memory, and code that other ops have pushed out of the caches. It was 3
# to 8 us inside MobileNets on an AMD EPYC: docs/decisions/0012. It is equal for all calls, but
# plans differ in their number of calls. Without it, noise would decide whether two ops run as one.
# _measure/known_costs.py adds it.
CALL_TICKS = 5000 * TICKS_PER_NS
