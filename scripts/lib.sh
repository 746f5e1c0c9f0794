# shellcheck shell=bash
# Shared by the scripts in this folder; source it, do not run it.
#
#   log TEXT, die TEXT      one line on standard error, with the script's name
#   run_logged LOG CMD...   runs CMD with its output in LOG, and its newest line on a terminal; when CMD fails, shows the
#                           end of LOG and exits
#   at_once COMMAND...      runs commands at once; when one fails, ends the others and exits
#   build PRESET [TARGET [OPTION...]]   configures and builds build/ or build/PRESET
#   setup_environment       MPI compilers, jobs, CUDA, and a StarPU that fits on PKG_CONFIG_PATH
#   set_up [--tests]        runs scripts/setup and setup_environment; during a build of StarPU it compiles what needs none
#
# STARPIPE_DEPS   where scripts/setup installs what it builds (default: .deps in the source tree)
# STARPIPE_MPI    mpich (the default) or openmpi. Each has its own StarPU and build folder (build/ and build/openmpi/).
# MPICC, MPICXX   compilers of this MPI (default: Debian's, else mpicc and mpicxx); MPIEXEC its launcher
# JOBS            parallel compile jobs of a build (default: the number of cores)

project_dir=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
script_name=$(basename -- "$0")
export STARPIPE_DEPS=${STARPIPE_DEPS:-$project_dir/.deps}
export STARPIPE_MPI=${STARPIPE_MPI:-mpich}
starpu_minimum=1.4.5

log() {
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi # the newest line of a command that runs at the same time
  printf '[%s] %s\n' "$script_name" "$*" >&2
}

die() {
  log "error: $*"
  exit 1
}

# shellcheck disable=SC2034 # for the scripts that source this file
case $STARPIPE_MPI in
  mpich) starpu_prefix=$STARPIPE_DEPS/starpu release_preset=release build_dir=build ;;
  openmpi) starpu_prefix=$STARPIPE_DEPS/starpu-openmpi release_preset=openmpi build_dir=build/openmpi ;;
  *)
    log "error: STARPIPE_MPI must be mpich or openmpi, not '$STARPIPE_MPI'"
    exit 2
    ;;
esac

# Shows the newest line of its input, cut to the terminal's width, and removes it at the end.
show_newest_line() {
  local line width
  width=$(tput cols 2>/dev/null || echo 80)
  while IFS= read -r line; do
    printf '\r\033[K%.*s' "$((width - 1))" "${line//[^[:print:]]/ }" >&2
  done
  printf '\r\033[K' >&2
}

run_logged() {
  local log_file=$1 status=0
  shift
  if [[ -t 2 ]]; then
    "$@" 2>&1 | tee -a -- "$log_file" | show_newest_line || status=$?
  else
    "$@" >>"$log_file" 2>&1 || status=$?
  fi
  ((status)) || return 0
  log "failed (exit status $status): $*; the end of $log_file:"
  tail -n 40 -- "$log_file" >&2
  exit 1
}

# Runs commands of bash at once, each a word that may use this file's functions. When one fails, or a signal ends the
# script, it ends the others with all processes that they have started: each command has a session of its own.
at_once() {
  local command ended status=0
  own_sessions
  for command in "$@"; do start_session "$command"; done
  while ((${#sessions[@]})); do
    wait -n -p ended "${sessions[@]}" 2>/dev/null || status=$?
    if [[ -z ${ended:-} ]]; then # bash forgets a job that ends together with another one, but keeps its status
      status=0
      for ended in "${sessions[@]}"; do kill -0 "$ended" 2>/dev/null || break; done
      wait "$ended" || status=$?
    fi
    unset "sessions[$ended]"
    ((status == 0)) || exit "$status"
  done
  trap - EXIT HUP INT TERM
}

own_sessions() { # until end_sessions: when the script ends, or a signal ends it, the sessions end, too
  sessions=()
  trap end_sessions EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

start_session() { # COMMAND
  setsid bash -c "set -euo pipefail; source '$project_dir/scripts/lib.sh'; $1" "$0" </dev/null &
  sessions[$!]=$!
}

# run_ctest BUILD_DIR ARG...: runs the tests of a build. After a failure the last lines of each failed test are repeated at the
# end, where a log is read first.
run_ctest() {
  local folder=$1 status=0
  shift
  ctest --test-dir "$folder" --output-on-failure --output-junit results.xml "$@" || status=$?
  if ((status)); then "$project_dir/scripts/failures" "$folder/results.xml"; fi
  return "$status"
}

# on_idle_cores AHEAD COMMAND...: runs the command. Meanwhile AHEAD, a word as for at_once, runs with the time of cores that
# the command leaves idle, in silence; it is ended with the command.
on_idle_cores() {
  local ahead=$1 status=0
  shift
  own_sessions
  # The second setting is of the whole session, where the system shares cores among sessions.
  start_session "exec &>/dev/null; chrt --idle --pid 0 \$\$; echo 19 >/proc/self/autogroup || true; $ahead"
  "$@" || status=$?
  end_sessions
  trap - EXIT HUP INT TERM
  return "$status"
}

end_sessions() {
  local session
  for session in "${sessions[@]}"; do
    kill -TERM -- "-$session" || kill -TERM "$session" # a command that has just begun has no session yet
    wait "$session"
  done 2>/dev/null || true
}

first_command() {
  local name
  for name in "$@"; do
    if command -v "$name" >/dev/null; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

# Prints the MPI libraries that the file $1 (a program or library) needs, such as "libmpich.so.12".
needed_mpi() { objdump -p -- "$1" | awk '$1 == "NEEDED" && $2 ~ /^libmpi/ { print $2 }' | sort | xargs; }

# Prints the MPI libraries that a program linked by $MPICC needs.
linked_mpi() {
  local dir
  dir=$(mktemp -d)
  echo 'int MPI_Finalize(void); int main(void) { return MPI_Finalize(); }' >"$dir/probe.c"
  "$MPICC" -o "$dir/probe" "$dir/probe.c" >/dev/null 2>&1 && needed_mpi "$dir/probe"
  rm -rf -- "$dir"
}

# True if pkg-config finds a StarPU that is new enough and uses our MPI; prints the reason when it does not.
starpu_fits() {
  if ! pkg-config --exists starpu-1.4 starpumpi-1.4; then
    echo "pkg-config finds no starpu-1.4 with starpumpi-1.4"
    return 1
  fi
  local version library starpu_mpi our_mpi
  version=$(pkg-config --modversion starpu-1.4)
  if ! pkg-config --atleast-version="$starpu_minimum" starpu-1.4; then
    echo "StarPU $version is older than $starpu_minimum"
    return 1
  fi
  library=$(pkg-config --variable=libdir starpumpi-1.4)/libstarpumpi-1.4.so
  if [[ ! -e $library ]]; then
    echo "StarPU $version has no shared library $library"
    return 1
  fi
  starpu_mpi=$(needed_mpi "$library")
  our_mpi=$(linked_mpi || true)
  if [[ -z $our_mpi || $starpu_mpi != "$our_mpi" ]]; then
    echo "$library is linked to ${starpu_mpi:-no MPI}, but $MPICC links ${our_mpi:-no MPI}"
    return 1
  fi
}

prepend_path() { # NAME DIR: puts DIR first in the colon-separated list NAME
  local value=${!1:-}
  export "$1=$2${value:+:$value}"
}

find_mpi() {
  MPICC=${MPICC:-$(first_command "mpicc.$STARPIPE_MPI" mpicc || true)}
  MPICXX=${MPICXX:-$(first_command "mpicxx.$STARPIPE_MPI" mpicxx || true)}
  MPIEXEC=${MPIEXEC:-$(first_command "mpiexec.$STARPIPE_MPI" mpiexec || true)}
  [[ -n $MPICC && -n $MPICXX && -n $MPIEXEC ]] || die "no MPI compiler or launcher on PATH; run scripts/setup"
  export MPICC MPICXX MPIEXEC
}

# Settings for ranks that a script starts. Open MPI starts neither as root nor more ranks than cores unless it is told to,
# and binds ranks by itself; starpipe binds workers.
set_up_launcher() {
  if [[ $STARPIPE_MPI == openmpi ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
  fi
}

find_cuda() { # prints the root of a CUDA toolkit with cuBLAS, if there is one
  local nvcc root
  nvcc=$(PATH=$PATH:/usr/local/cuda/bin first_command nvcc) || return 0
  root=$(dirname -- "$(dirname -- "$(readlink -f -- "$nvcc")")")
  if [[ -e $root/include/cublas_v2.h ]]; then printf '%s\n' "$root"; fi
}

# True if the StarPU that pkg-config finds was built with CUDA.
starpu_has_cuda() {
  grep -qs '^#define STARPU_USE_CUDA 1' "$(pkg-config --variable=starpu_includedir starpu-1.4)/starpu_config.h"
}

setup_environment() {
  export JOBS=${JOBS:-$(nproc)}
  find_mpi
  # The user's own StarPU (PKG_CONFIG_PATH, Spack, Guix, modules) comes first when it fits.
  if ! starpu_fits >/dev/null; then
    prepend_path PKG_CONFIG_PATH "$starpu_prefix/lib/pkgconfig"
  fi
}

# Options of CMake for the CUDA code. It is compiled where there are CUDA's toolkit and a StarPU that was built with CUDA;
# elsewhere its kernels run in an emulator.
cuda_options() {
  local cuda_dir
  cuda_dir=$(find_cuda)
  if [[ -z $cuda_dir ]]; then
    log "no CUDA toolkit found: the CUDA code is not compiled (its kernels run in an emulator)"
  elif ! starpu_has_cuda; then
    log "StarPU was built without CUDA: the CUDA code is not compiled (its kernels run in an emulator)"
  else
    log "the CUDA code is compiled with $cuda_dir"
    printf '%s\n' -DSTARPIPE_WITH_CUDA=ON "-DCUDAToolkit_ROOT=$cuda_dir"
    return
  fi
  printf '%s\n' -DSTARPIPE_WITH_CUDA=OFF
}

build() { # PRESET [TARGET [OPTION of CMake...]]
  local preset=$1 target=${2:-all} log_file=$project_dir/build/$1.log
  shift $(($# < 2 ? $# : 2))
  mkdir -p "$project_dir/build"
  : >"$log_file"
  log "building $target of the $preset preset (log in build/$preset.log) ..."
  run_logged "$log_file" cmake --preset "$preset" "$@"
  run_logged "$log_file" cmake --build --preset "$preset" --target "$target" --parallel "$JOBS"
}

# StarPU's configure keeps one core busy, and so do parts of its build: the other cores compile what needs no StarPU.
set_up() { # [--tests]
  scripts/setup --packages "$@"
  setup_environment
  if starpu_fits >/dev/null; then
    scripts/setup "$@" # which builds it again if its recipe has changed
  else
    at_once "scripts/setup $*" "build $release_preset starpipe_codelets -DSTARPIPE_WITH_RUNTIME=OFF -DSTARPIPE_WITH_CUDA=OFF"
  fi
}
