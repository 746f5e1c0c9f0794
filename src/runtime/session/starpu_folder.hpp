// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::runtime {

/// Makes the folder in which StarPU keeps what it has measured of the machine. Throws InputError, which names
/// the folder and the variable that it follows from, when that is impossible: StarPU would abort.
void make_starpu_folder();

}  // namespace starpipe::runtime
