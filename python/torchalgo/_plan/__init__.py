# SPDX-License-Identifier: BSD-3-Clause
"""Makes a plan, with a proof, from candidates, costs and limits."""
