# SPDX-License-Identifier: BSD-3-Clause
"""Checks proofs of plans, with code that shares nothing with the planner.

check_claims.py and check_certificate.py also run alone, without torch. check_plan.py is the public
torchalgo.check_plan.
"""
