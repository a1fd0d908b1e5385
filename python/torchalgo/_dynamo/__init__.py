# SPDX-License-Identifier: BSD-3-Clause
"""The backend of torch.compile: graphs of Dynamo as models that optimize plans."""
