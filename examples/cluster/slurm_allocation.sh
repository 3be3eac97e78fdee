#!/usr/bin/env bash
# Scheduler, workers and client in one allocation, without dask-jobqueue:
#
#   sbatch --nodes=3 --export=ALL,INTERFACE=ib0 slurm_allocation.sh \
#       --data /shared/rows --checkpoint /shared/run-7
#
#SBATCH --job-name=fit
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00

cd "$SLURM_SUBMIT_DIR" || exit
export PYTHONPATH=$PWD:$PYTHONPATH
name=scheduler-$SLURM_JOB_ID
network=(--scheduler-file "$PWD/$name.json" --interface "${INTERFACE:-ib0}")

dask scheduler "${network[@]}" --port 0 --dashboard-address :0 &> "$name.log" &
# With the scheduler, the workers end; srun waits for them.
trap "kill $!; wait; rm -f '$name.json'" EXIT
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" dask worker "${network[@]}" \
    --nthreads "$SLURM_CPUS_PER_TASK" --death-timeout 60 --local-directory /tmp \
    &> "workers-$SLURM_JOB_ID.log" &
python -u fit.py --scheduler-file "$PWD/$name.json" --workers "$SLURM_NTASKS" "$@"
