// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>  // has join
