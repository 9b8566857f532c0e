#!/bin/sh
# four_processes.sh PORT FOLDER COMMAND...: the same four JAX processes that a launcher would start, and nothing else.
# Each gets the environment of one host, its own folder and its own log; the script waits for all.
port=$1; folder=$2; shift 2
pids=
for i in 0 1 2 3; do
  mkdir -p "$folder/host-$i"
  (
    cd "$folder/host-$i" || exit 1
    export RANK=$i WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 JAX_PLATFORMS=cpu KERAS_BACKEND=jax
    export XLA_FLAGS=--xla_force_host_platform_device_count=4
    export KR_KFP_TASK=train KR_KFP_HOST=$i KR_KFP_HOSTS=4 KR_KFP_CHECKPOINT_DIR="$folder/checkpoints"
    export JAX_COORDINATOR_ADDRESS=127.0.0.1:$port
    exec "$@"
  ) >"$folder/host-$i.log" 2>&1 &
  pids="$pids $!"
done
code=0
for pid in $pids; do wait "$pid" || code=1; done
exit $code
