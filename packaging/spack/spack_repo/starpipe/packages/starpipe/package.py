# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Starpipe(CMakePackage, CudaPackage):
    """Trains deep networks as task graphs on StarPU, under schedules of a placement and a priority."""

    # The clone that has this file.
    git = Path(__file__).resolve().parents[6].as_uri()

    license("Apache-2.0")

    version("main", branch="main")

    variant("fxt", default=True, description="StarPU's own traces")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("mpi")
    requires(
        "^[virtuals=mpi] mpich",
        "^[virtuals=mpi] cray-mpich",
        "^[virtuals=mpi] mvapich",
        policy="any_of",
        msg="starpipe runs on MPICH and its derivatives",
    )
    depends_on("starpu@1.4.5:1.4+mpi")
    depends_on("starpu+fxt", when="+fxt")
    # Blocking drivers have one stream a GPU. Without GPUs they let idle workers sleep.
    depends_on("starpu+cuda~blocking", when="+cuda")
    depends_on("starpu~cuda+blocking", when="~cuda")
    depends_on("hwloc")
    depends_on("openblas")
    # Matrix products on cores; on other processors OpenBLAS is faster.
    depends_on("onednn@2.6: cpu_runtime=omp", when="target=x86_64:")
    depends_on("cli11")
    depends_on("yaml-cpp")
    depends_on("nlohmann-json")
    depends_on("fmt")
    depends_on("zlib-api")
    depends_on("googletest+gmock", type="test")
    depends_on("python", type="test")
    depends_on("py-numpy", type="test")

    conflicts("%gcc@:11", msg="starpipe is written in C++20")
    # CMake refuses the architecture "none".
    conflicts("cuda_arch=none", when="+cuda", msg="starpipe +cuda needs the architecture of the GPUs, such as cuda_arch=90")
    generator("ninja")

    def cmake_args(self):
        args = [
            self.define_from_variant("STARPIPE_WITH_CUDA", "cuda"),
            self.define("STARPIPE_BUILD_TESTS", self.run_tests),
            self.define("STARPIPE_BUILD_BENCHMARKS", False),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args
