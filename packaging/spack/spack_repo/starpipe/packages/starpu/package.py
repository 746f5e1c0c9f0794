# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from spack_repo.builtin.packages.starpu.package import Starpu as BuiltinStarpu

from spack.package import *


class Starpu(BuiltinStarpu):
    """Spack's StarPU with the change that scripts/setup makes: StarPU-MPI's thread yields where it has given up its lock.
    Then starpipe can let it sleep there, and ranks whose cores are all taken by workers do not wait for it."""

    def patch(self):
        source = Path("mpi/src/mpi/starpu_mpi_mpi.c")
        before, comment, after = source.read_text().partition("monopolizing it while polling")
        changed = after.replace("STARPU_VALGRIND_YIELD();", "sched_yield();", 1)
        if changed == after:
            raise InstallError(f"{source} has no place to yield in StarPU-MPI's polling loop")
        source.write_text(before + comment + changed)
