// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::cli {

/// From now on, when the code of a plug-in crashes or calls exit, the program prints one line that names the
/// plug-in and the signal, and ends with status 128 + the signal's number; 1 after a call of exit. The line
/// names the rank, too, and all ranks of a training run end. When the program's own code crashes, it prints
/// one line with the signal (in a training run the parent of `watch_over_rank` does), removes its temporary
/// files and ends by the signal; the report of a sanitizer takes the place of this line. Call it once, in
/// `main`: signal handlers belong to the program.
void report_plugin_crashes();

/// For a child process whose parent looks at how it ends: from now on a crash ends this process by its
/// signal, and a call of exit by a plug-in gives status 1. Nothing is printed.
void leave_plugin_crashes_to_parent();

}  // namespace starpipe::cli
